// Python (Pyodide) beside the page, which stays alive while it starts and computes.
import { loadPyodide } from "./calculators/pyodide.mjs";

const files = new URL("calculators/", import.meta.url); // what extensions/calculators.py has put there

// Says how many bytes have come, after each file.
let loaded = 0;
new PerformanceObserver((list) => {
  list.getEntries().forEach((file) => (loaded += file.decodedBodySize));
  postMessage({ loaded });
}).observe({ type: "resource", buffered: true });

const started = (async () => {
  const [python, bundle] = await Promise.all([
    loadPyodide({ indexURL: files.href }),
    fetch(new URL("worldsize.zip", files)).then((response) => response.arrayBuffer()),
  ]);
  python.unpackArchive(bundle, "zip", { extractDir: "/course" });
  python.runPython('import sys; sys.path.insert(0, "/course")');
  return { python, calculator: python.pyimport("calculators.calculator") };
})();

// Puts files that somebody chose where Python reads them.
const written = async (python, chosen) => {
  python.FS.mkdirTree("/files");
  return Promise.all(
    chosen.map(async (file) => {
      python.FS.writeFile(`/files/${file.name}`, new Uint8Array(await file.arrayBuffer()));
      return `/files/${file.name}`;
    }),
  );
};

// A message asks for a function of calculators/calculator.py; one without a function, whether Python has started.
onmessage = async ({ data: { id, call, name, given } }) => {
  try {
    const { python, calculator } = await started;
    if (!call) return void postMessage({ id });
    const paths = call === "explain" ? await written(python, given) : [];
    const own = python.toPy(paths.length ? paths : given);
    try {
      postMessage({ id, result: calculator[call](name, own) });
    } finally {
      own.destroy?.();
      paths.forEach((path) => python.FS.unlink(path));
    }
  } catch (error) {
    postMessage({ id, problem: error.message });
  }
};
