// How search sorts what it finds: pages that explain before pages that list, and headings before words in a text.
const WEIGHTS = [
  [/^CHANGELOG$|^docs\/claims$|^docs\/requirements$|^docs\/accessibility$/, 0.1],
  [/^reference\/|^commands$|^self_checks$|^checklist$/, 0.4],
  [/^labs\//, 0.5],
  [/^docs\/(troubleshooting|glossary|engineers|numbers)$|^calculators\//, 1.6],
  [/^docs\/|^teaching$/, 1.3],
];
var Scorer = {
  score: ([page, , , , score]) => score * (WEIGHTS.find(([pattern]) => pattern.test(page))?.[1] ?? 1),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 5, 1: 0, 2: -5 },
  objPrioDefault: 0,
  title: 30,
  partialTitle: 14,
  term: 5,
  partialTerm: 1,
};
