// Pinned runs side by side: figures, categories, tensors, and the settings that differ.
import type { ComponentChildren } from "preact";
import { type Pin, SHORT } from "./address";
import { useAnswer } from "./asking";
import { scaleLinear } from "d3-scale";
import { OTHER, colourOf } from "./colours";
import { nameOf, requestOf, usePage } from "./context";
import type { Compared, Run, Value } from "./documents";
import { Figure, Legend } from "./figure";
import { GIB, gib, size } from "./figures";
import { FOOT, GibAxis } from "./axis";
import { Hatch } from "./hatch";
import { worded } from "./words";

const WORDS = Object.fromEntries(Object.entries(SHORT).map(([short, name]) => [name, short]));
const MOST = 20;

const labelOf = (name: string, gpus: number | undefined, settings: Readonly<Record<string, Value>>): string =>
  [name.split("/").at(-1)?.slice(0, 60), gpus === undefined ? "" : `${gpus} GPUs`, ...Object.entries(settings).slice(0, 6).map(([one, value]) => `${WORDS[one] ?? one} ${String(value)}`)].filter(Boolean).join(" ");

/** The pins with one more run; a sentence where there are as many as can be compared. */
export const pinned = (pins: readonly Pin[], name: string, run: Run, what?: string): readonly Pin[] | string => {
  if (pins.length >= MOST) return `${MOST} runs are pinned, as many as can be compared.`;
  const label = what === undefined ? labelOf(name, run.num_gpus, run.settings) : [name.split("/").at(-1)?.slice(0, 60), run.num_gpus === undefined ? "" : `${run.num_gpus} GPUs`, what].filter(Boolean).join(" ");
  const twice = pins.filter((one) => one.label === label || one.label.startsWith(`${label} #`)).length;
  return [...pins, { label: twice ? `${label} #${twice + 1}` : label, run }];
};

export const PinButton = () => {
  const { state, go, say } = usePage();
  const has = state.pins.some((pin) => JSON.stringify(pin.run) === JSON.stringify(state.run));
  const pin = () => {
    const kept = pinned(state.pins, nameOf(state), state.run);
    if (typeof kept === "string") return say(kept);
    go({ pins: kept });
    say("Pinned. Compare shows the pinned runs side by side.");
  };
  return <button type="button" class="quiet" disabled={has} title="Keep this run for Compare" onClick={pin}>{has ? "Pinned" : "Pin this run"}</button>;
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
const ROW = 30;

/** Every case as one bar: what torch has allocated at the peak by category, and up to what the device takes; each with its GPU's memory. */
const Stacks = ({ found }: { found: Compared }) => {
  const rows = found.cases.flatMap((one, place) => (one.estimate ? [{ label: one.label, place, estimate: one.estimate }] : []));
  if (rows.length === 0) return null;
  const most = Math.max(...rows.map(({ estimate }) => Math.max(estimate.verdict.memory_bytes, estimate.peak.device_bytes.high)));
  const height = rows.length * ROW + FOOT;
  const parts = found.parts.filter((one) => one.bytes.some((bytes) => bytes));
  return (
    <Figure title="Side by side, the stage of the highest peak" name="compared" note={<Legend of={parts.map(({ part }) => [part, colourOf(part)] as const)} />}>
      {(width) => {
        const left = Math.min(240, width / 3);
        const x = scaleLinear([0, most / GIB], [left, width - 100]);
        return (
          <svg class="figure" width={width} height={height} role="img" aria-label={`${rows.length} runs side by side`}>
            <Hatch />
            <GibAxis x={x} width={width} height={height} each={130} />
            {rows.map(({ label, place, estimate }, row) => {
              let from = 0;
              const top = row * ROW;
              const { low, high } = estimate.peak.device_bytes;
              const limit = x(estimate.verdict.memory_bytes / GIB);
              return (
                <g key={label}>
                  <text class="name" x={4} y={top + ROW / 2} dominant-baseline="central">{label.length > 34 ? `…${label.slice(-33)}` : label}<title>{label}</title></text>
                  {parts.map(({ part, bytes }) => {
                    const start = x(from / GIB);
                    from += bytes[place] ?? 0;
                    return <rect key={part} fill={colourOf(part)} x={start} y={top + 5} width={Math.max(0, x(from / GIB) - start)} height={ROW - 11} />;
                  })}
                  <rect fill={OTHER} x={x(from / GIB)} y={top + 5} width={Math.max(0, x(low / GIB) - x(from / GIB))} height={ROW - 11} />
                  <rect class="upto" fill="url(#hatch)" x={x(low / GIB)} y={top + 5} width={Math.max(0, x(high / GIB) - x(low / GIB))} height={ROW - 11} />
                  <line class="limit" x1={limit} x2={limit} y1={top + 1} y2={top + ROW - 3} />
                  <text class={`value ${high > estimate.verdict.memory_bytes ? "over" : ""}`} x={width - 4} y={top + ROW / 2} text-anchor="end" dominant-baseline="central">{gib(low, 1)}–{gib(high, 1)}</text>
                </g>
              );
            })}
          </svg>
        );
      }}
    </Figure>
  );
};

/** What the last of two has more than the first. */
const more = (bytes: readonly (number | null)[]): number => (bytes.at(-1) ?? 0) - (bytes[0] ?? 0);
const signed = (bytes: number): string => `${bytes < 0 ? "−" : "+"}${size(Math.abs(bytes))}`;

const Sides = ({ found }: { found: Compared }) => {
  const heads = found.cases.map((one) => one.label);
  const parts = found.parts.filter((one) => one.bytes.some((bytes) => bytes));
  const most = Math.max(1, ...parts.flatMap((one) => one.bytes.map((bytes) => bytes ?? 0)));
  const differs = new Set(found.differs);
  const figures = Object.entries(found.figures).filter(([name]) => differs.has(name));
  const two = heads.length === 2 && found.cases.every((one) => one.estimate);
  const tensors = found.tensors.filter(({ bytes }) => bytes.some((own) => own !== bytes[0]));
  return (
    <>
      <Stacks found={found} />
      <Sheet title="Figures that differ" label="Figures" first="figure" heads={heads} rows={figures.map(([name, cells]) => ({ key: name, head: name, cells }))} />
      <Sheet
        title="At the peak, by category"
        label="Categories"
        first="category"
        heads={two ? [...heads, "difference"] : heads}
        rows={parts.map(({ part, bytes }) => ({ key: part, head: part, cells: [...bytes.map((own) => <Share bytes={own} most={most} part={part} />), ...(two ? [signed(more(bytes))] : [])] }))}
      />
      <Sheet
        title="Tensors that differ most"
        label="Tensors that differ"
        first="tensor"
        heads={two ? [...heads, "difference"] : heads}
        rows={tensors.slice(0, MOST_TENSORS).map(({ part, name, bytes }) => ({
          key: `${part} ${name}`,
          head: <><i class="swatch" style={{ background: colourOf(part) }} /> {name}</>,
          cells: [...bytes.map((own) => (own === null ? "–" : size(own))), ...(two ? [signed(more(bytes))] : [])],
        }))}
      />
      {found.other_tensors.count > 0 && <p class="quiet-text">{found.other_tensors.count} other tensors differ by less.</p>}
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
          <section class="card" aria-label="Answers">{[...found.answers, ...found.changes].map((line) => <p key={line}>{worded(line)}</p>)}</section>
          {found.cases.map((one, place) => "refusal" in one && <p key={place} class="refusal"><strong>{one.label}</strong>: {one.refusal}</p>)}
          <Sides found={found} />
        </div>
      )}
    </main>
  );
};
