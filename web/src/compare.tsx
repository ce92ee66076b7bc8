// Pinned runs side by side: figures, categories, tensors, and the settings that differ.
import type { ComponentChildren } from "preact";
import { SHORT } from "./address";
import { useAnswer } from "./asking";
import { colourOf } from "./colours";
import { nameOf, requestOf, usePage } from "./context";
import type { Compared, Value } from "./documents";
import { size } from "./figures";

const WORDS = Object.fromEntries(Object.entries(SHORT).map(([short, name]) => [name, short]));
const MOST = 20;

const labelOf = (name: string, gpus: number | undefined, settings: Readonly<Record<string, Value>>): string =>
  [name.split("/").at(-1)?.slice(0, 60), gpus === undefined ? "" : `${gpus} GPUs`, ...Object.entries(settings).slice(0, 6).map(([one, value]) => `${WORDS[one] ?? one} ${String(value)}`)].filter(Boolean).join(" ");

export const PinButton = () => {
  const { state, go, say } = usePage();
  const pinned = state.pins.some((pin) => JSON.stringify(pin.run) === JSON.stringify(state.run));
  const pin = () => {
    const { pins, run } = state;
    if (pins.length >= MOST) return say(`${MOST} runs are pinned, as many as can be compared.`);
    const label = labelOf(nameOf(state), run.num_gpus, run.settings);
    const twice = pins.filter((one) => one.label === label || one.label.startsWith(`${label} #`)).length;
    go({ pins: [...pins, { label: twice ? `${label} #${twice + 1}` : label, run }] });
    say("Pinned. Compare shows the pinned runs side by side.");
  };
  return <button type="button" class="quiet" disabled={pinned} title="Keep this run for Compare" onClick={pin}>{pinned ? "Pinned" : "Pin this run"}</button>;
};

const written = (value: Value | undefined): string => (value === undefined ? "" : value === null ? "none" : Array.isArray(value) ? value.join(", ") || "none" : String(value));

const Share = ({ bytes, most, part }: { bytes: number | null; most: number; part: string }) =>
  bytes === null ? (
    <>–</>
  ) : (
    <span class="share">
      <i style={{ width: `${most ? (60 * bytes) / most : 0}px`, background: colourOf(part) }} />
      <span data-bytes={bytes}>{size(bytes)}</span>
    </span>
  );

type Row = { readonly key: string; readonly head: ComponentChildren; readonly cells: readonly ComponentChildren[] };

/** A table with a column for each run. */
const Sheet = ({ title, label, first, heads, rows }: { title: string; label: string; first: string; heads: readonly string[]; rows: readonly Row[] }) =>
  rows.length === 0 ? null : (
    <section class="card" aria-label={label}>
      <h2>{title}</h2>
      <div class="scroll">
        <table>
          <thead><tr><th class="left">{first}</th>{heads.map((one, place) => <th key={place} class="case">{one}</th>)}</tr></thead>
          <tbody>
            {rows.map(({ key, head, cells }) => (
              <tr key={key}><th class="left">{head}</th>{cells.map((cell, place) => <td key={place}>{cell}</td>)}</tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );

const MOST_TENSORS = 60;

const Sides = ({ found }: { found: Compared }) => {
  const heads = found.cases.map((one) => one.label);
  const parts = found.parts.filter((one) => one.bytes.some((bytes) => bytes));
  const most = Math.max(1, ...parts.flatMap((one) => one.bytes.map((bytes) => bytes ?? 0)));
  const differs = new Set(found.differs);
  const figures = Object.entries(found.figures).filter(([name]) => differs.has(name));
  return (
    <>
      <Sheet title="Figures that differ" label="Figures" first="figure" heads={heads} rows={figures.map(([name, cells]) => ({ key: name, head: name, cells }))} />
      <Sheet
        title="At the peak, by category"
        label="Categories"
        first="category"
        heads={heads}
        rows={parts.map(({ part, bytes }) => ({ key: part, head: part, cells: bytes.map((own) => <Share bytes={own} most={most} part={part} />) }))}
      />
      <Sheet
        title="Tensors that differ most"
        label="Tensors that differ"
        first="tensor"
        heads={heads}
        rows={found.tensors.slice(0, MOST_TENSORS).map(({ part, name, bytes }) => ({
          key: `${part} ${name}`,
          head: <><i class="swatch" style={{ background: colourOf(part) }} /> {name}</>,
          cells: bytes.map((own) => (own === null ? "–" : size(own))),
        }))}
      />
      <Sheet
        title="Settings that differ"
        label="Settings that differ"
        first="setting"
        heads={heads}
        rows={found.settings.map(({ name, values }) => ({ key: name, head: name, cells: values.map(written) }))}
      />
    </>
  );
};

export const CompareView = () => {
  const { engine, state, go } = usePage();
  const { pins } = state;
  const cases = pins.map((pin) => ({ label: pin.label, ...requestOf(pin.run) }));
  const { found, error, busy, fresh } = useAnswer<Compared>(engine, "compare", pins.length > 1 ? { cases } : null);
  return (
    <main class="whole">
      <section class="card" aria-label="Pinned runs">
        <h2>Pinned runs</h2>
        {pins.length < 2 && <p>Pin two runs or more, with the button at the top, to see what differs.</p>}
        <ul class="pins">
          {pins.map((pin, place) => (
            <li key={place}>
              <button type="button" onClick={() => go({ view: "estimate", run: pin.run, file: undefined as never })}>{pin.label}</button>
              <button type="button" class="quiet" aria-label={`Unpin ${pin.label}`} onClick={() => go({ pins: pins.filter((_, other) => other !== place) })}>×</button>
            </li>
          ))}
        </ul>
      </section>
      {error !== undefined && <p class="refusal" role="alert">{error}</p>}
      {busy && !found && <p class="busy">The runs are estimated …</p>}
      {found && error === undefined && pins.length > 1 && (
        <div class={fresh ? "" : "stale"} aria-busy={!fresh}>
          <section class="card" aria-label="Answers">{[...found.answers, ...found.changes].map((line) => <p key={line}>{line}</p>)}</section>
          {found.cases.map((one, place) => "refusal" in one && <p key={place} class="refusal"><strong>{one.label}</strong>: {one.refusal}</p>)}
          <Sides found={found} />
        </div>
      )}
    </main>
  );
};
