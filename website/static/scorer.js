// How search sorts what it finds: pages that explain a word, then pages that use or list it. Both searches use this.
const WEIGHTS = [
  [/^CHANGELOG$|^docs\/(claims|requirements|patches)$/, 0.1],
  [/^reference\/|^self_checks$|^checklist$/, 0.4],
  [/^(index|README|CONTRIBUTING|look_up)$|^labs\/|^docs\/benchmark$/, 0.5],
  [/^commands$|^calculators\//, 0.8],
  [/^docs\/troubleshooting$/, 1.6],
];
const weightOf = (page) => WEIGHTS.find(([pattern]) => pattern.test(page))?.[1] ?? 1;
var Scorer = {
  score: ([page, , , , score, , kind]) => score * weightOf(page) * (kind === "title" ? 3 : 1),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 5, 1: 0, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 1, // "OOM" is no "room"
  term: 5,
  partialTerm: 1,
};
