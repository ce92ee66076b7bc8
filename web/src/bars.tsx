// Every stage's peak by category against the GPU's memory, with what it takes of the device.
import { scaleLinear } from "d3-scale";
import { useState } from "preact/hooks";
import { PARTS, colourOf, termColour } from "./colours";
import { usePage } from "./context";
import type { Estimate, Stage } from "./documents";
import { Figure, Legend } from "./figure";
import { FOOT, GibAxis } from "./axis";
import { Hatch } from "./hatch";
import { GIB, counted, gib, ranges, size } from "./figures";
import { type Spot, Tip } from "./tip";

const layersOf = (stage: Stage): string => {
  const numbers = stage.chunks.flatMap((chunk) => chunk.layers).sort((one, other) => one - other);
  const ends = [
    stage.chunks.some((chunk) => chunk.embedding) && "embedding",
    stage.chunks.some((chunk) => chunk.mtp) && "MTP",
    stage.chunks.some((chunk) => chunk.output) && "output",
  ].filter(Boolean);
  return [numbers.length ? `layers ${ranges(numbers)}` : "no layer", ...ends].join(", ");
};

const Hint = ({ stage }: { stage: Stage }) => (
  <>
    <strong>Stage {stage.pp_rank}</strong>: {layersOf(stage)}
    <br />
    {size(stage.peak_allocated_bytes)} allocated at {stage.peak_event}
    <br />
    {PARTS.filter((part) => stage.breakdown_bytes[part]).map((part) => (
      <span key={part} class="part">
        <i style={{ background: colourOf(part) }} /> {part} {size(stage.breakdown_bytes[part]!)}
      </span>
    ))}
    needs {gib(stage.device_bytes.low, 1)} to {gib(stage.device_bytes.high, 1)} GiB; between steps {size(stage.steady_allocated_bytes)}
  </>
);

/** What is outside torch, behind what it has allocated: each from where to where, at least. */
const outsideOf = (stage: Stage): readonly (readonly [string, number, number])[] => {
  let from = stage.peak_allocated_bytes;
  return stage.device_terms.filter((term) => term.low > 0).map((term) => [term.name, from, (from += term.low)] as const);
};

const LEFT = 34;
const RIGHT = 96;

export const Bars = ({ found, stage }: { found: Estimate; stage: number }) => {
  const { go } = usePage();
  const [spot, setSpot] = useState<Spot | null>(null);
  const { stages, verdict } = found;
  const high = Math.max(verdict.memory_bytes, ...stages.map((one) => Math.max(one.device_bytes.high, one.peak_allocated_bytes)));
  const row = stages.length > 40 ? 12 : stages.length > 16 ? 16 : 24;
  const height = stages.length * row + FOOT;
  const legend = PARTS.filter((part) => stages.some((one) => one.breakdown_bytes[part])).map((part) => [part, colourOf(part)] as const);
  return (
    <Figure title="Stages while they train" name="stages" note={<Legend of={legend} />}>
      {(width) => {
        const x = scaleLinear([0, high / GIB], [LEFT, width - RIGHT]);
        const limit = x(verdict.memory_bytes / GIB);
        return (
          <>
            <svg class="figure stages" width={width} height={height} role="group" aria-label={`Peak of ${counted(stages.length, "stage")}; ${verdict.gpu} has ${gib(verdict.memory_bytes, 1)} GiB`}>
              <Hatch />
              <GibAxis x={x} width={width} height={height} each={110} />
              {stages.map((one, place) => {
                let from = 0;
                const top = place * row;
                const [low, far] = [x(one.device_bytes.low / GIB), x(one.device_bytes.high / GIB)];
                const choose = () => go({ stage: one.pp_rank });
                return (
                  <g
                    key={one.pp_rank}
                    class={`bar ${one.pp_rank === stage ? "chosen" : ""}`}
                    tabindex={0}
                    role="button"
                    aria-pressed={one.pp_rank === stage}
                    aria-label={`Stage ${one.pp_rank}: ${gib(one.peak_allocated_bytes)} GiB allocated, ${layersOf(one)}`}
                    onClick={choose}
                    onKeyDown={(event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), choose())}
                    onPointerMove={(event) => setSpot({ x: event.offsetX, y: event.offsetY, content: <Hint stage={one} /> })}
                    onPointerLeave={() => setSpot(null)}
                  >
                    <rect class="hit" x={0} y={top} width={width} height={row} />
                    <text class="name" x={LEFT - 8} y={top + row / 2} text-anchor="end" dominant-baseline="central">{one.pp_rank}</text>
                    {PARTS.map((part) => {
                      const start = x(from / GIB);
                      from += one.breakdown_bytes[part] ?? 0;
                      return <rect key={part} fill={colourOf(part)} x={start} y={top + 3} width={Math.max(0, x(from / GIB) - start)} height={row - 7} />;
                    })}
                    {outsideOf(one).map(([name, start, end]) => (
                      <rect key={name} fill={termColour(name, false)} x={x(start / GIB)} y={top + 3} width={Math.max(0, x(end / GIB) - x(start / GIB))} height={row - 7} />
                    ))}
                    <rect fill="url(#hatch)" class="upto" x={low} y={top + 3} width={Math.max(0, far - low)} height={row - 7} />
                    <text class={`value ${one.device_bytes.high > verdict.memory_bytes ? "over" : ""}`} x={width - 4} y={top + row / 2} text-anchor="end" dominant-baseline="central">{gib(one.device_bytes.low, 1)}–{gib(one.device_bytes.high, 1)}</text>
                  </g>
                );
              })}
              <line class="limit" x1={limit} x2={limit} y1={0} y2={height - FOOT} />
            </svg>
            <Tip at={spot} width={width} />
            <p class="legend">
              <span>▕ ╌ {verdict.gpu}, {gib(verdict.memory_bytes, 1)} GiB</span>
              <span>grey: NCCL, contexts, libraries</span>
              <span>▨ up to, with what fragmentation may take</span>
            </p>
          </>
        );
      }}
    </Figure>
  );
};
