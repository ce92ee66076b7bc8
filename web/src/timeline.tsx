// One training step: what every stage runs, and what one of them has allocated; a moment that is pressed shows its tensors.
import { bisectRight } from "d3-array";
import { scaleLinear } from "d3-scale";
import { useMemo, useState } from "preact/hooks";
import { Below, Beside } from "./axis";
import { COLOURS, OTHER, eventColour } from "./colours";
import { usePage } from "./context";
import type { Lane, Lanes, Shape } from "./documents";
import { Figure, Legend } from "./figure";
import { GIB, gib, seconds, size, tickSeconds } from "./figures";
import { Hatch } from "./hatch";
import { type Spot, Tip } from "./tip";
import { useZoom } from "./zoom";

const LEFT = 46;
const RIGHT = 10;
const FOOT = 20;
const CURVE = 190;

/** Places of a lane's columns that have seconds, in the order in which they start. */
const placesOf = (lane: Lane): number[] =>
  lane.columns.start_s.flatMap((start, place) => (start === null ? [] : [place]));

const at = (lane: Lane, name: keyof Lane["columns"], place: number): number => lane.columns[name][place] ?? 0;

/** The rectangles of one event as one path: a thousand passes are one element. */
const boxes = (lane: Lane, places: readonly number[], event: number, x: (s: number) => number, top: number, tall: number): string =>
  places
    .filter((place) => lane.columns.event[place] === event)
    .map((place) => {
      const [from, to] = [x(at(lane, "start_s", place)), x(at(lane, "end_s", place))];
      return to - from < 0.05 ? "" : `M${from.toFixed(2)},${top}H${(to - Math.min(0.6, (to - from) / 4)).toFixed(2)}V${top + tall}H${from.toFixed(2)}Z`;
    })
    .join("");

/** Points of a moment: where in it, and how many bytes below its highest. A pass has one for each layer; anything else is highest in its middle. */
const shapeOf = (lane: Lane, place: number): Shape => {
  const number = lane.columns.shape[place];
  return (number === null || number === undefined ? undefined : lane.shapes[number]) ?? { at: [0.5], below_bytes: [0] };
};

/** When in a moment most is allocated. */
export const topOf = (lane: Lane, place: number): number => {
  const { at: shares, below_bytes } = shapeOf(lane, place);
  const share = shares[Math.max(0, below_bytes.indexOf(0))] ?? 0.5;
  const from = at(lane, "start_s", place);
  return from + (at(lane, "end_s", place) - from) * share;
};

export const curveOf = (lane: Lane, places: readonly number[], x: (s: number) => number, y: (bytes: number) => number): string =>
  places
    .map((place) => {
      const [from, to, highest] = [at(lane, "start_s", place), at(lane, "end_s", place), at(lane, "highest_bytes", place)];
      const { at: shares, below_bytes } = shapeOf(lane, place);
      const fine = x(to) - x(from) > 3; // narrower ones are a start, their highest and an end
      const inside = fine ? shares.map((share, number) => [from + (to - from) * share, highest - (below_bytes[number] ?? 0)] as const) : [[topOf(lane, place), highest] as const];
      const points = [[from, at(lane, "start_bytes", place)] as const, ...inside, [to, at(lane, "end_bytes", place)] as const];
      return points.map(([when, bytes]) => `${x(when).toFixed(2)},${y(bytes).toFixed(2)}`).join("L");
    })
    .join("L");

const what = (lanes: Lanes, lane: Lane, place: number): string => {
  const event = lanes.events[at(lane, "event", place)] ?? "";
  const micro = lane.columns.microbatch[place];
  if (micro === null || micro === undefined) return event;
  const chunk = Math.max(...lane.columns.chunk.map((one) => one ?? 0)) > 0 ? `, chunk ${lane.columns.chunk[place]}` : "";
  const beside = lane.columns.beside_microbatch[place];
  return beside === null || beside === undefined ? `${event} of microbatch ${micro}${chunk}` : `forward of microbatch ${micro}${chunk} beside the backward of ${beside}`;
};

const Hint = ({ lanes, lane, place }: { lanes: Lanes; lane: Lane; place: number }) => (
  <>
    <strong>Stage {lane.pp_rank}, {what(lanes, lane, place)}</strong>
    <br />
    {lane.columns.start_s[place] === null ? "once in a run" : `${seconds(at(lane, "start_s", place))} to ${seconds(at(lane, "end_s", place))}`}, {at(lane, "in_flight", place)} microbatches in flight
    <br />
    at most {size(at(lane, "highest_bytes", place))}: {lanes.labels[at(lane, "label", place)]}
  </>
);

/** State that stays through the step: the lowest band first, with what is below it. */
const STAYING = ["weights", "gradients", "optimizer", "workspace"] as const;

/** What is alive between two steps, in bands; of the last band is what no other has. */
const bands = (parts: Readonly<Record<string, number>>, steady: number): readonly (readonly [string, number, number])[] => {
  let from = 0;
  return STAYING.map((part, place) => {
    const to = place === STAYING.length - 1 ? steady : Math.min(steady, from + (parts[part] ?? 0));
    const band = [part, from, Math.max(from, to)] as const;
    from = band[2];
    return band;
  }).filter(([, low, high]) => high > low);
};

/** The seconds between which microbatches that repeat are left out of a lane. */
export const gapOf = (lane: Lane): readonly [number, number] | null => {
  const place = lane.left_out ? lane.columns.index.indexOf(lane.left_out.behind) : -1;
  return place < 0 || place + 1 >= lane.columns.index.length ? null : [at(lane, "end_s", place), at(lane, "start_s", place + 1)];
};

type Shown = { readonly lanes: Lanes; readonly stage: number; readonly moment: number | undefined; readonly parts: Readonly<Record<string, number>> };

const laneOf = ({ lanes, stage }: Shown): Lane => lanes.stages.find((one) => one.pp_rank === stage) ?? lanes.stages[0]!;

export const Timeline = (shown: Shown) => {
  const { lanes } = shown;
  const lane = laneOf(shown);
  const words = lanes.events.filter((word, number) => word === "forward" || word === "backward" || lanes.stages.some((one) => one.columns.event.includes(number) && eventColour(word) !== OTHER));
  return (
    <Figure
      title={`A step, and the memory of stage ${lane.pp_rank}`}
      name={`timeline-stage-${lane.pp_rank}`}
      note={<Legend of={[...words.map((word) => [word === "optimizer" ? "optimizer step" : word, eventColour(word)] as const), ["other", OTHER], ...STAYING.map((part) => [part, COLOURS[part]!] as const), ["activations and scratch", COLOURS["activations"]!]]} />}
    >
      {(width) => <Step {...shown} width={width} />}
    </Figure>
  );
};

/** The lanes of all stages and the curve of one below them, over the same seconds. */
const Step = (shown: Shown & { readonly width: number }) => {
  const { lanes, moment, parts, width } = shown;
  const { go } = usePage();
  const [svg, setSvg] = useState<SVGSVGElement | null>(null);
  const [spot, setSpot] = useState<Spot | null>(null);
  const ordered = useMemo(() => lanes.stages.map(placesOf), [lanes]);
  const lane = laneOf(shown);
  const mine = ordered[lanes.stages.indexOf(lane)]!;
  const chosen = lane.columns.index.indexOf(moment ?? lane.peak_moment);
  const peak = lane.columns.index.indexOf(lane.peak_moment);
  const tall = lanes.stages.length > 24 ? 9 : 15;
  const field = lanes.stages.length * tall + 8;
  const height = field + CURVE + FOOT;
  const end = Math.max(...lanes.stages.map((one, place) => at(one, "end_s", ordered[place]!.at(-1) ?? 0)), 1e-9);
  const top = Math.max(lanes.gpu_memory_bytes, ...mine.map((place) => at(lane, "highest_bytes", place)));
  const zoomed = useZoom(svg, scaleLinear([0, end], [LEFT, width - RIGHT]), height - FOOT, lanes);
  const { x } = zoomed;
  const span = x.domain() as [number, number];
  const y = scaleLinear([0, (top / GIB) * 1.06], [field + CURVE, field + 8]);
  const of = (bytes: number) => y(bytes / GIB);
  const pick = (one: Lane, place: number) => go({ stage: one.pp_rank, moment: one.columns.index[place]! }, "replace");

  const keys = (event: KeyboardEvent) => {
    const now = Math.max(0, mine.indexOf(chosen));
    const step = { ArrowRight: 1, ArrowLeft: -1, PageDown: 16, PageUp: -16, Home: -1e9, End: 1e9 }[event.key];
    const other = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const closer = { "+": 2, "=": 2, "-": 0.5 }[event.key];
    if (event.ctrlKey || event.metaKey) return; // the browser's own
    if (step !== undefined) pick(lane, mine[Math.min(mine.length - 1, Math.max(0, now + step))]!);
    else if (other !== undefined) {
      const next = lanes.stages[lanes.stages.indexOf(lane) + other];
      if (next) go({ stage: next.pp_rank, ...(next.peak_moment === null ? {} : { moment: next.peak_moment }) }, "replace");
    } else if (event.key.toLowerCase() === "p" && peak >= 0) pick(lane, peak);
    else if (closer !== undefined) zoomed.by(closer, chosen >= 0 ? topOf(lane, chosen) : (span[0] + span[1]) / 2);
    else if (event.key === "0") zoomed.whole();
    else return;
    event.preventDefault();
  };

  const found = (event: PointerEvent | MouseEvent): readonly [Lane, number] | null => {
    const row = Math.floor(event.offsetY / tall);
    const number = event.offsetY < field - 8 ? Math.min(row, lanes.stages.length - 1) : lanes.stages.indexOf(lane);
    const one = lanes.stages[number];
    const places = ordered[number];
    if (!one || !places?.length) return null;
    const when = x.invert(event.offsetX);
    const place = bisectRight(places.map((p) => at(one, "start_s", p)), when) - 1;
    return [one, places[Math.max(0, place)]!];
  };
  const gap = gapOf(lane);
  const before = gap ? mine.filter((place) => at(lane, "start_s", place) < gap[1]) : mine;
  const lines = (gap ? [before, mine.filter((place) => at(lane, "start_s", place) >= gap[1])] : [mine]).filter((one) => one.length).map((places) => curveOf(lane, places, x, of));
  const steady = of(lane.steady_allocated_bytes);
  const marks = [[peak, "peak"], [chosen, "moment"]] as const;
  return (
    <>
      <svg
        class="figure timeline"
        ref={setSvg}
        width={width}
        height={height}
        tabindex={0}
        role="application"
        aria-label={`Timeline of stage ${lane.pp_rank}. Left and right go from moment to moment, up and down from stage to stage, P goes to the peak, plus and minus zoom, 0 shows the whole step. ${chosen >= 0 ? what(lanes, lane, chosen) : ""}`}
        onKeyDown={keys}
        onPointerMove={(event) => {
          const one = found(event);
          setSpot(one && { x: event.offsetX, y: event.offsetY, content: <Hint lanes={lanes} lane={one[0]} place={one[1]} /> });
        }}
        onPointerLeave={() => setSpot(null)}
        onClick={(event) => {
          const one = found(event);
          if (one) pick(one[0], one[1]);
        }}
        onDblClick={zoomed.whole}
      >
        <Hatch />
        <clipPath id="field"><rect x={LEFT} y={0} width={width - LEFT - RIGHT} height={height - FOOT} /></clipPath>
        {lanes.stages.map((one, row) => (
          <g key={one.pp_rank} class={one === lane ? "lane chosen" : "lane"}>
            <rect class="hit" x={LEFT} y={row * tall} width={width - LEFT - RIGHT} height={tall - 2} />
            {(lanes.stages.length <= 24 || row % 4 === 0) && <text class="name" x={LEFT - 8} y={row * tall + tall / 2} text-anchor="end" dominant-baseline="central">{one.pp_rank}</text>}
            {lanes.events.map((word, number) => (
              <path key={word} clip-path="url(#field)" fill={eventColour(word)} d={boxes(one, ordered[row]!, number, x, row * tall, tall - 3)} />
            ))}
          </g>
        ))}
        <Beside y={y} left={LEFT} wide={width - LEFT - RIGHT} />
        <Below x={x} top={height - FOOT} tall={0} each={140} written={(tick) => tickSeconds(tick, span[1])} />
        <text class="tick" x={LEFT - 6} y={field + 2} text-anchor="end">GiB</text>
        <g clip-path="url(#field)">
          {lines.map((line) => (
            <g key={line}>
              <path class="area" fill={COLOURS["activations"]} d={`M${line}V${steady}H${line.slice(0, line.indexOf(","))}Z`} />
              <path class="line" d={`M${line}`} />
            </g>
          ))}
          {bands(parts, lane.steady_allocated_bytes).map(([part, low, high]) => (
            <rect key={part} class="band" fill={COLOURS[part]} x={LEFT} width={width - LEFT - RIGHT} y={of(high)} height={of(low) - of(high)} />
          ))}
          {lanes.stages.map((one, row) => {
            const own = gapOf(one);
            return own && <rect key={one.pp_rank} class="gap" fill="url(#hatch)" x={x(own[0])} width={Math.max(0, x(own[1]) - x(own[0]))} y={row * tall} height={tall - 3} />;
          })}
          {gap && (
            <>
              <rect class="gap" fill="url(#hatch)" x={x(gap[0])} width={Math.max(0, x(gap[1]) - x(gap[0]))} y={field + 8} height={CURVE - 8} />
              <text class="tick" x={(x(gap[0]) + x(gap[1])) / 2} y={field + CURVE / 2} text-anchor="middle">{lane.left_out?.microbatches} microbatches</text>
            </>
          )}
          {spot && <line class="cursor" x1={spot.x} x2={spot.x} y1={0} y2={field + CURVE} />}
        </g>
        <g class="brush" />
        <line class="limit" x1={LEFT} x2={width - RIGHT} y1={of(lanes.gpu_memory_bytes)} y2={of(lanes.gpu_memory_bytes)} />
        {marks.map(([place, name]) => place >= 0 && lane.columns.start_s[place] !== null && topOf(lane, place) >= span[0] && topOf(lane, place) <= span[1] && (
          <g key={name} class={`mark ${name}`}>
            <line x1={x(topOf(lane, place))} x2={x(topOf(lane, place))} y1={lanes.stages.indexOf(lane) * tall} y2={field + CURVE} />
            <circle cx={x(topOf(lane, place))} cy={of(at(lane, "highest_bytes", place))} r={name === "peak" ? 4 : 5} />
          </g>
        ))}
      </svg>
      <Tip at={spot} width={width} />
      <p class="legend">
        <span>● peak of the stage, {gib(lane.peak_allocated_bytes)} GiB</span>
        <span>○ the moment below</span>
        <span>╌ {lanes.gpu}, {gib(lanes.gpu_memory_bytes, 1)} GiB</span>
        {lane.left_out && <span>▨ the middle of the step, {lane.left_out.microbatches} microbatches that repeat, is left out</span>}
        {zoomed.isPart ? <button type="button" class="quiet" onClick={zoomed.whole}>Whole step</button> : <span>drag, or Ctrl and the wheel, to zoom</span>}
      </p>
    </>
  );
};
