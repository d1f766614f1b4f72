// Compiles Python's modules by Pyodide's own Python, because a browser would compile them at each start.
// node compile_modules.mjs FOLDER_OF_PYODIDE ZIP INTO: INTO gets python_stdlib.zip and the ZIP under its own name.
import { readFileSync, writeFileSync } from "node:fs";
import { basename, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, bundle, into] = process.argv.slice(2).map((path) => resolve(path));
const { loadPyodide } = await import(pathToFileURL(join(folder, "pyodide.mjs")));
const python = await loadPyodide({ indexURL: `${folder}/` });
const read = (path) => new Uint8Array(readFileSync(path));
python.FS.writeFile("/library.zip", read(join(folder, "python_stdlib.zip")));
python.FS.writeFile("/course.zip", read(bundle));
python.runPython(readFileSync(new URL("compile_modules.py", import.meta.url), "utf-8"));
writeFileSync(join(into, "python_stdlib.zip"), python.FS.readFile("/library.zip"));
writeFileSync(join(into, basename(bundle)), python.FS.readFile("/course.zip"));
