// What each phase of the run takes of the GPU; the one that decides is marked, and opens what it is made of.
import { scaleLinear } from "d3-scale";
import { isEngine, termColour } from "./colours";
import { usePage } from "./context";
import type { Estimate, Event, Term } from "./documents";
import { Figure, Legend } from "./figure";
import { GIB, gib, size } from "./figures";
import { FOOT, GibAxis } from "./axis";
import { Hatch } from "./hatch";
import { Linked } from "./term";

/** What a run does in a phase. */
export const DOES: Readonly<Record<string, string>> = {
  training: "train", first_step: "take the first step", load: "resume", save: "save", build: "build", generation: "generate", log_probs: "get log-probabilities",
  reference: "run the reference", weight_sync: "hand over weights",
};

const ROW = 26;
const NAME = 168;
const VALUE = 96;

/** Terms that come after the first one outside torch. */
const inTorch = (terms: readonly Term[], place: number): boolean => !terms.slice(0, place + 1).some((one) => one.name === "CUDA context");

const range = ({ low, high }: { low: number; high: number }): string => (gib(low) === gib(high) ? gib(low) : `${gib(low)} – ${gib(high)}`);

const Terms = ({ event, terms }: { event: Event; terms: readonly Term[] }) => (
  <div class="scroll">
    <table aria-label={`What it takes to ${DOES[event.phase] ?? event.phase}`}>
      <thead><tr><th class="left"><Linked>{`to ${DOES[event.phase] ?? event.phase}`}</Linked>, stage {event.pp_rank}</th><th>GiB</th><th class="left">known from</th></tr></thead>
      <tbody>
        {terms.map((one, place) => (
          <tr key={one.name}>
            <td class="left"><i class="swatch" style={{ background: termColour(one.name, inTorch(terms, place)) }} /> <Linked>{one.name}</Linked></td>
            <td title={`${size(one.low)} to ${size(one.high)}`}>{range(one)}</td>
            <td class="left quiet-text">{one.source}</td>
          </tr>
        ))}
        <tr><th class="left">together</th><td><strong>{range(event.device_bytes)}</strong></td><td /></tr>
      </tbody>
    </table>
  </div>
);

export const Phases = ({ found }: { found: Estimate }) => {
  const { state, go } = usePage();
  const { verdict } = found;
  const chosen = verdict.events.some((one) => one.phase === state.phase) ? state.phase : verdict.phase;
  const terms = new Map(found.phases.map((one) => [one.phase, one.terms]));
  const most = Math.max(verdict.memory_bytes, ...verdict.events.map((one) => one.device_bytes.high));
  const height = verdict.events.length * ROW + FOOT;
  const open = verdict.events.find((one) => one.phase === chosen);
  return (
    <Figure title="What each phase takes of a GPU" name="phases">
      {(width) => {
        const drawn = [...new Map([...terms.values()].flatMap((own) => own.map((one, number) => [termColour(one.name, inTorch(own, number)), one.name] as const)))].map(([colour, name]) => [name, colour] as const);
        const left = Math.min(NAME, width / 3);
        const x = scaleLinear([0, most / GIB], [left, width - VALUE]);
        const limit = x(verdict.memory_bytes / GIB);
        return (
          <>
            <svg class="figure phases" width={width} height={height} role="group" aria-label={`What ${verdict.events.length} phases take of ${gib(verdict.memory_bytes, 1)} GiB`}>
              <Hatch />
              <GibAxis x={x} width={width} height={height} each={130} />
              {verdict.events.map((one, place) => {
                const top = place * ROW;
                const own = terms.get(one.phase) ?? [];
                let from = 0;
                const choose = () => go({ phase: one.phase, stage: one.pp_rank }, "replace");
                const decides = one.phase === verdict.phase;
                return (
                  <g
                    key={one.phase}
                    class={`bar ${one.phase === chosen ? "chosen" : ""}`}
                    tabindex={0}
                    role="button"
                    aria-pressed={one.phase === chosen}
                    aria-label={`${DOES[one.phase] ?? one.phase}: ${gib(one.device_bytes.low, 1)} to ${gib(one.device_bytes.high, 1)} GiB on stage ${one.pp_rank}, ${one.verdict}${decides ? ", decides" : ""}`}
                    onClick={choose}
                    onKeyDown={(event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), choose())}
                  >
                    <rect class="hit" x={0} y={top} width={width} height={ROW} />
                    <text class="name" x={6} y={top + ROW / 2} dominant-baseline="central">{decides ? "▸ " : ""}{DOES[one.phase] ?? one.phase}</text>
                    {own.map((term, number) => {
                      const start = x(from / GIB);
                      from += term.low;
                      const wide = Math.max(0, x(from / GIB) - start);
                      return (
                        <g key={term.name}>
                          <rect fill={termColour(term.name, inTorch(own, number))} x={start} y={top + 4} width={wide} height={ROW - 9} />
                          {isEngine(term.name) && <rect fill="url(#hatch-engine)" x={start} y={top + 4} width={wide} height={ROW - 9} />}
                          {isEngine(term.name) && wide > 70 && <text class="engine" x={start + wide / 2} y={top + ROW / 2} text-anchor="middle" dominant-baseline="central">engine</text>}
                        </g>
                      );
                    })}
                    <rect fill="url(#hatch)" class="upto" x={x(one.device_bytes.low / GIB)} y={top + 4} width={Math.max(0, x(one.device_bytes.high / GIB) - x(one.device_bytes.low / GIB))} height={ROW - 9} />
                    <text class={`value ${one.verdict === "fits" ? "" : "over"}`} x={width - 4} y={top + ROW / 2} text-anchor="end" dominant-baseline="central">{gib(one.device_bytes.low, 1)}–{gib(one.device_bytes.high, 1)}</text>
                  </g>
                );
              })}
              <line class="limit" x1={limit} x2={limit} y1={0} y2={height - FOOT} />
            </svg>
            <p class="legend">
              <span>▸ decides</span>
              <span>▨ up to</span>
              <span>╌ {verdict.gpu}, {gib(verdict.memory_bytes, 1)} GiB</span>
            </p>
            <Legend of={drawn} />
            {open && (
              <details key={open.phase} open={verdict.verdict !== "fits" || state.phase !== undefined}>
                <summary>What it takes to {DOES[open.phase] ?? open.phase}</summary>
                <Terms event={open} terms={terms.get(open.phase) ?? []} />
              </details>
            )}
          </>
        );
      }}
    </Figure>
  );
};
