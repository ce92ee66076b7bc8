// What a run left behind, beside its estimate: a memory snapshot of torch, a log, or one measured figure. None of it is in the address.
import { useState } from "preact/hooks";
import { useAnswer } from "./asking";
import { PARTS, colourOf } from "./colours";
import { type Evidence, changed, requestOf, usePage } from "./context";
import type { Bounds, Log, Snapshot, SnapshotLeft, Why } from "./documents";
import { Legend } from "./figure";
import { count, gib, percent, size } from "./figures";
import { worded } from "./words";

const LARGEST = 1.4 * 2 ** 20;
const LITTLE = 2 ** 20;
const MOST = 12;

const packed = async (bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array<ArrayBuffer>> => {
  if (bytes[0] === 0x1f && bytes[1] === 0x8b) return bytes;
  const stream = new Blob([bytes]).stream().pipeThrough(new CompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
};

const toBase64 = (bytes: Uint8Array): string => {
  let letters = "";
  for (let at = 0; at < bytes.length; at += 8192) letters += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(letters);
};

const LINES = /memory \((?:MB|GB)\) \||Memory-Usage |out of memory\. Tried to allocate|memory\.used|mem-max-|perf\/max_memory|DCGM_FI_DEV_FB_USED|NCCL INFO|"traceEvents"/;

/** What a file is evidence of; null where it is a run. */
export const evidenceOf = async (file: File): Promise<Evidence | null> => {
  const head = new Uint8Array(await file.slice(0, 2).arrayBuffer());
  const binary = head[0] === 0x80 || (head[0] === 0x1f && head[1] === 0x8b) || /\.(pickle|pkl)(\.gz)?$/i.test(file.name);
  if (binary) {
    const bytes = await packed(new Uint8Array(await file.arrayBuffer()));
    if (bytes.length > LARGEST) throw new Error(`${file.name} is ${size(bytes.length)} when packed; the page reads at most ${size(LARGEST)}: megatron-memory snapshot reads all of it`);
    return { kind: "snapshot", name: file.name, content: toBase64(bytes) };
  }
  const text = await file.text();
  return LINES.test(text) ? { kind: "log", name: file.name, content: text } : null;
};

const Left = ({ title, rows }: { title: string; rows: readonly SnapshotLeft[] }) => {
  const shown = rows.filter((one) => one.bytes >= LITTLE).slice(0, MOST);
  return shown.length === 0 ? null : (
    <div class="scroll">
      <table class="cards" aria-label={title}>
        <thead><tr><th class="left">{title}</th><th>GiB</th><th>blocks</th><th class="left">part</th><th class="left">line</th></tr></thead>
        <tbody>
          {shown.map((one) => (
            <tr key={`${one.part} ${one.tensor} ${one.where}`}>
              <td class="left">{one.tensor}</td>
              <td data-head="GiB">{gib(one.bytes)}</td>
              <td data-head="blocks">{count(one.blocks)}</td>
              <td class="left" data-head="part"><i class="swatch" style={{ background: colourOf(one.part) }} /> {one.part}</td>
              <td class="left quiet-text" data-head="line">{one.where}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
};

/** One bar for each side, on one axis. */
const Sides = ({ found, predicted }: { found: Snapshot; predicted: Readonly<Record<string, number>> | undefined }) => {
  const sides = [["snapshot", found.parts], ...(predicted ? [["estimate", predicted] as const] : [])] as const;
  const most = Math.max(...sides.map(([, parts]) => Object.values(parts).reduce((sum, bytes) => sum + bytes, 0)));
  const names = [...new Set(sides.flatMap(([, parts]) => Object.keys(parts)))];
  const colour = (name: string) => (PARTS.includes(name as never) ? colourOf(name) : name === "loss" ? colourOf("activations") : colourOf(""));
  return (
    <>
      {sides.map(([name, parts]) => (
        <p key={name} class="side">
          <span class="label">{name}</span>
          <span class="stack" role="img" aria-label={`${name}: ${Object.entries(parts).map(([part, bytes]) => `${part} ${size(bytes)}`).join(", ")}`}>
            {Object.entries(parts).map(([part, bytes]) => <i key={part} title={`${part} ${size(bytes)}`} style={{ background: colour(part), width: `${(100 * bytes) / most}%` }} />)}
          </span>
          <span>{gib(Object.values(parts).reduce((sum, bytes) => sum + bytes, 0))} GiB</span>
        </p>
      ))}
      <Legend of={names.map((name) => [name, colour(name)] as const)} />
    </>
  );
};

const OfSnapshot = ({ content, predicted }: { content: string; predicted: Readonly<Record<string, number>> | undefined }) => {
  const { engine, state, go } = usePage();
  const { found, error, busy } = useAnswer<Snapshot>(engine, "snapshot", { ...requestOf(state.run), snapshot: content });
  if (error !== undefined) return <p class="refusal" role="alert">{worded(error)}</p>;
  if (!found) return <p class="busy">The snapshot is read{busy ? " …" : ""}</p>;
  const beside = found.beside;
  return (
    <>
      {beside && <p><strong>{beside.sentence}</strong></p>}
      {beside?.hints.map((hint) => <p key={hint}>{worded(hint.charAt(0).toUpperCase() + hint.slice(1))}.</p>)}
      {beside && Object.keys(beside.settings).length > 0 && <p><button type="button" onClick={() => go({ run: changed(state.run, beside.settings) })}>Apply these settings</button></p>}
      <p>{found.sentence}</p>
      <Sides found={found} predicted={predicted} />
      {beside && <Left title="in the snapshot alone" rows={beside.only_seen} />}
      {beside && <Left title="in the estimate alone" rows={beside.only_predicted} />}
      <Left title="who made it" rows={found.groups.map((one) => ({ ...one, where: one.file ? `${one.file}:${one.line} ${one.function}` : "" }))} />
      {found.piled.length > 0 && <Left title="what each pass leaves behind" rows={found.piled.map((one) => ({ ...one, where: `${one.file}:${one.line} ${one.function}` }))} />}
      <p class="quiet-text">
        At the dump torch had {gib(found.reserved_bytes)} GiB, {gib(found.allocated_bytes)} of them in tensors; the largest hole is {gib(found.largest_hole_bytes)} GiB. {percent(found.named)} of the bytes have a name. {found.notes.join("; ")}
      </p>
    </>
  );
};

const range = (one: Bounds | null): string => (one === null ? "–" : gib(one.low) === gib(one.high) ? gib(one.low) : `${gib(one.low)} – ${gib(one.high)}`);

const OfLog = ({ content }: { content: string }) => {
  const { engine, state } = usePage();
  const { found, error } = useAnswer<Log>(engine, "validate", { ...requestOf(state.run), log: content });
  if (error !== undefined) return <p class="refusal" role="alert">{worded(error)}</p>;
  if (!found) return <p class="busy">The log is read …</p>;
  const rows = [
    ...found.ranks.map((one) => ({ name: `rank ${one.rank}, iteration ${one.iteration}, peak allocated`, stage: one.pp_rank, measured: one.max_allocated_bytes["measured"] ?? 0, expected: gib(one.max_allocated_bytes["estimated"] ?? 0) })),
    ...found.figures.map((one) => ({ name: [one.source, one.peak ? "peak" : "now", one.quantity, one.of, one.iteration === null ? "" : `iteration ${one.iteration}`].filter(Boolean).join(" "), stage: one.pp_rank, measured: one.measured_bytes, expected: range(one.expected_bytes) })),
    ...found.ran_out.map((one) => ({ name: `ran out, asked for ${gib(one.asked_bytes)} GiB`, stage: one.pp_rank, measured: one.allocated_bytes, expected: gib(one.expected_bytes) })),
    ...found.layers.map((one) => ({ name: `layer ${one.number} (${one.kind}) keeps`, stage: one.pp_rank, measured: one.retained_bytes["mean"] ?? 0, expected: gib(one.retained_bytes["estimated"] ?? 0) })),
  ];
  return (
    <>
      <p><strong>{worded(found.sentence)}</strong></p>
      <div class="scroll">
        <table class="cards" aria-label="Figures of the log">
          <thead><tr><th class="left">figure</th><th>stage</th><th>GiB</th><th>estimate</th></tr></thead>
          <tbody>{rows.map((one) => <tr key={one.name}><td class="left">{one.name}</td><td data-head="stage">{one.stage}</td><td data-head="GiB">{gib(one.measured)}</td><td data-head="estimate">{one.expected}</td></tr>)}</tbody>
        </table>
      </div>
    </>
  );
};

/** What would make a measured figure what it is. */
const OfFigure = () => {
  const { engine, state } = usePage();
  const [typed, setTyped] = useState("");
  const [measured, setMeasured] = useState("");
  const { found, error } = useAnswer<Why>(engine, "why", measured ? { ...requestOf(state.run), measured } : null);
  return (
    <>
      <form class="row" aria-label="A measured figure" onSubmit={(event) => (event.preventDefault(), setMeasured(typed.trim()))}>
        <label class="row">
          <span class="label">Your run shows</span>
          <input name="measured" placeholder="85.3GiB" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
        </label>
        <button type="submit" disabled={!typed.trim()}>Why?</button>
        <span class="quiet-text">or drop a log or a memory snapshot of torch</span>
      </form>
      {measured && error !== undefined && <p class="refusal" role="alert">{worded(error)}</p>}
      {measured && found && error === undefined && (
        <>
          <p><strong>{worded(found.sentence)}</strong></p>
          <ul>{found.causes.map((one) => <li key={one.says}>{worded(one.says)}: {range(one.figure_bytes)} GiB. <span class="quiet-text">{worded(one.check)}</span></li>)}</ul>
          {found.others.map((one) => <p key={one} class="quiet-text">{worded(one)}</p>)}
        </>
      )}
    </>
  );
};

export const EvidenceCard = ({ predicted }: { predicted: Readonly<Record<string, number>> | undefined }) => {
  const { engine, evidence, show } = usePage();
  if (!engine.live) return null;
  return (
    <section class="card" aria-label="Your own run">
      <header class="card-head">
        <h2>Your own run{evidence && `: ${evidence.name}`}</h2>
        {evidence && <button type="button" class="quiet" onClick={() => show(null)}>Put away</button>}
      </header>
      {evidence?.kind === "snapshot" ? <OfSnapshot content={evidence.content} predicted={predicted} /> : evidence ? <OfLog content={evidence.content} /> : <OfFigure />}
    </section>
  );
};
