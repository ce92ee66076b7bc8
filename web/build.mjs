// Builds the page from its sources: page.js, page.css and worker.js beside index.html in the Python package, and a list of what
// others wrote in them, with version, licence and checksum. `npm ci && npm run build`; a test builds again and compares.
import { build } from "esbuild";
import { copyFile, mkdir, readFile, readdir, rm, writeFile } from "node:fs/promises";

const out = new URL(process.env.PAGE ?? "../src/megatron_memory_estimator/web/page/", import.meta.url).pathname;
await rm(out, { recursive: true, force: true });
await mkdir(out, { recursive: true });
const common = { bundle: true, minify: true, format: "esm", target: "es2022", legalComments: "none", charset: "utf8", logLevel: "warning" };
await build({ ...common, entryPoints: ["src/page.tsx"], outfile: `${out}page.js`, jsx: "automatic", jsxImportSource: "preact" });
await build({ ...common, entryPoints: ["src/page.css"], outfile: `${out}page.css` });
await build({ ...common, entryPoints: ["src/worker.ts"], outfile: `${out}worker.js`, external: ["./pyodide/*"] });
await build({ ...common, entryPoints: ["src/offline.ts"], outfile: `${out}offline.js` });
await copyFile("src/index.html", `${out}index.html`);

const lock = JSON.parse(await readFile("package-lock.json", "utf8")).packages;
const others = [];
for (const [path, entry] of Object.entries(lock)) {
  if (!path || entry.dev) continue;
  const files = await readdir(path);
  const licence = files.find((name) => /^licen[cs]e/i.test(name));
  others.push({
    name: path.replace("node_modules/", ""),
    version: entry.version,
    licence: entry.license,
    integrity: entry.integrity,
    text: licence ? await readFile(`${path}/${licence}`, "utf8") : "",
  });
}
await writeFile(`${out}third_party.json`, JSON.stringify(others, null, 1) + "\n");
