// How search sorts what it finds: headings that are the query, then pages that explain a word, then pages that use it.
const WEIGHTS = [
  [/^CHANGELOG$|^docs\/(claims|requirements|accessibility)$/, 0.1],
  [/^reference\/|^self_checks$|^checklist$/, 0.4],
  [/^labs\/|^docs\/benchmark$/, 0.5],
  [/^docs\/(troubleshooting|glossary)$/, 3.2],
  [/^docs\/engineers$|^calculators\//, 1.6],
  [/^docs\/|^teaching$/, 1.3],
  [/^commands$/, 0.7],
];
var Scorer = {
  score: ([page, , , , score, , kind]) =>
    score * (WEIGHTS.find(([pattern]) => pattern.test(page))?.[1] ?? 1) * (kind === "title" ? 3 : 1),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 5, 1: 0, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 1, // "OOM" is no "room"
  term: 5,
  partialTerm: 1,
};
