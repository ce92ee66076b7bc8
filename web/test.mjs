// Runs the tests of the page's own functions: bundled as the page is, then by Node's own runner.
import { build } from "esbuild";
import { spawnSync } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

const folder = await mkdtemp(join(tmpdir(), "page-"));
const outfile = join(folder, "units.test.mjs");
await build({ entryPoints: ["test/units.test.ts"], outfile, bundle: true, format: "esm", platform: "node", target: "es2022", jsx: "automatic", jsxImportSource: "preact", logLevel: "warning" });
const { status } = spawnSync(process.execPath, ["--test", outfile], { stdio: "inherit" });
await rm(folder, { recursive: true });
process.exit(status ?? 1);
