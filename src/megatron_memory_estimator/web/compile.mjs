// Compiles zip archives with the Python of Pyodide: node compile.mjs FOLDER ARCHIVE... where the folder holds Pyodide, archive.py
// beside this file, and the archives, which are written anew with .pyc files instead of .py files.
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [folder, ...archives] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${folder}/pyodide.mjs`).href);
const pyodide = await loadPyodide({ indexURL: folder, env: { PYTHONHASHSEED: "0" } });
pyodide.runPython(readFileSync(new URL("archive.py", import.meta.url), "utf8"));
for (const name of archives) {
  pyodide.FS.writeFile("/sources.zip", readFileSync(`${folder}/${name}`));
  pyodide.runPython(`
with open("/sources.zip", "rb") as file:
    found = compiled(file.read())
with open("/compiled.zip", "wb") as file:
    file.write(found)
`);
  writeFileSync(`${folder}/${name}`, pyodide.FS.readFile("/compiled.zip"));
}
