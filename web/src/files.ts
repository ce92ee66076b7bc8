// Files that are dropped, opened or pasted: which of them are a run, which is the run, and which only stand beside it.
import type { Run } from "./documents";

/** A file by its path below the folder that was dropped, or by its name. */
export type Given = { readonly path: string; readonly file: File };

const LARGEST = 1.5 * 2 ** 20;
const MOST = 200;
/** Endings of the files that a run may read; others of a folder are passed over. */
const READ = /\.(sh|bash|sbatch|slurm|ya?ml|json|env|conf|cfg|rc|inc|config)$/i;
const SCRIPT = /\.(sh|bash|sbatch|slurm)$/i;
/** Folders that hold nothing of a run. */
const PASSED = /(^|\/)(\.git|node_modules|__pycache__|\.venv)(\/|$)/;

const baseOf = (path: string): string => path.split("/").at(-1)!;

const below = (entry: FileSystemEntry, found: Given[]): Promise<void> =>
  new Promise((resolve, reject) => {
    const path = entry.fullPath.replace(/^\//, "");
    if (PASSED.test(path) || found.length > 4 * MOST) return resolve();
    if (entry.isFile) return (entry as FileSystemFileEntry).file((file) => (found.push({ path, file }), resolve()), reject);
    const reader = (entry as FileSystemDirectoryEntry).createReader();
    const next = () =>
      reader.readEntries((entries) => {
        if (!entries.length) return resolve();
        Promise.all(entries.map((one) => below(one, found))).then(next, reject);
      }, reject);
    next();
  });

/** The files of a drop, those of folders too. */
export const droppedOf = async (data: DataTransfer): Promise<readonly Given[]> => {
  const entries = [...data.items].flatMap((item) => (item.kind === "file" ? [item.webkitGetAsEntry()] : [])); // before the first await: the list is emptied then
  const plain = [...data.files];
  if (!entries.some((entry) => entry?.isDirectory)) return plain.map((file) => ({ path: file.name, file }));
  const found: Given[] = [];
  await Promise.all(entries.map((entry) => entry && below(entry, found)));
  return found;
};

/** The texts of files by path. Rejects where one is no text, or they are more than a request may hold. */
export const textsOf = async (given: readonly Given[]): Promise<Readonly<Record<string, string>>> => {
  const kept = given.length === 1 ? given : given.filter(({ path }) => READ.test(path));
  if (!kept.length) throw new Error(`none of ${given.length} files is a launch script, YAML or JSON`);
  if (kept.length > MOST) throw new Error(`${kept.length} files are dropped; the page reads at most ${MOST}`);
  const bytes = kept.reduce((sum, { file }) => sum + file.size, 0);
  const what = kept.length === 1 ? `${kept[0]!.file.name} has` : `${kept.length} files have`;
  if (bytes > LARGEST) throw new Error(`${what} ${bytes} bytes; the page reads at most ${LARGEST}`);
  return Object.fromEntries(await Promise.all(kept.map(async ({ path, file }) => [path, await file.text()] as const)));
};

/** The file that is the run: one that no other names, a script before YAML before JSON. */
export const runAmong = (texts: Readonly<Record<string, string>>): string => {
  const paths = Object.keys(texts);
  const named = (path: string) => paths.some((other) => other !== path && texts[other]!.includes(baseOf(path)));
  const kind = (path: string) => (SCRIPT.test(path) ? 0 : /\.ya?ml$/i.test(path) ? 1 : 2);
  const depth = (path: string) => path.split("/").length;
  return paths.sort((a, b) => Number(named(a)) - Number(named(b)) || kind(a) - kind(b) || depth(a) - depth(b) || a.localeCompare(b))[0]!;
};

/** The text of a run that has one. */
export const textOf = (run: Run): string | undefined => run.text ?? run.files?.[run.model ?? ""];

/** A run of files: that of one file is its text, and no setting of the run before. Files that the run so far names stand beside it. */
export const runOf = (texts: Readonly<Record<string, string>>, now: Run, name: string | undefined): { readonly run: Run; readonly file?: string } => {
  const paths = Object.keys(texts);
  const before = textOf(now);
  const known = now.files ?? (before === undefined ? {} : { [name ?? "run"]: before });
  const isNamed = before !== undefined && paths.every((path) => !(path in known) && Object.values(known).some((text) => text.includes(baseOf(path))));
  if (isNamed) {
    const { text: _, ...kept } = now;
    return { run: { ...kept, model: now.files ? now.model! : Object.keys(known)[0]!, files: { ...known, ...texts } } };
  }
  if (paths.length === 1) return { run: { text: texts[paths[0]!]!, settings: {} }, file: paths[0]! };
  return { run: { model: runAmong(texts), files: texts, settings: {} } };
};
