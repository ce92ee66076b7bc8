// Memory against speed: the plans, of which none beats another in both.
import { scaleLinear } from "d3-scale";
import { useState } from "preact/hooks";
import { Below, Beside } from "./axis";
import type { Plan, Plans } from "./documents";
import { Figure } from "./figure";
import { GIB, count, gib } from "./figures";
import { layoutOf } from "./plan";
import { type Spot, Tip } from "./tip";

const HEIGHT = 280;
const [LEFT, RIGHT, TOP, FOOT] = [64, 16, 10, 36];

const extent = (values: readonly number[]): [number, number] => {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const room = (high - low) * 0.06 || high * 0.05 || 1;
  return [Math.max(0, low - room), high + room];
};

export const Scatter = ({ found, rows, open }: { found: Plans; rows: readonly Plan[]; open: (plan: Plan) => void }) => {
  const [spot, setSpot] = useState<Spot | null>(null);
  return (
    <Figure title="Memory against speed" name="plans">
      {(width) => {
        const front = [...found.plans].sort((one, other) => one.device_bytes.high - other.device_bytes.high);
        const memory = front.map((one) => one.device_bytes.high / GIB);
        const x = scaleLinear(extent([...memory, found.limit_bytes / GIB]), [LEFT, width - RIGHT]).nice();
        const y = scaleLinear(extent(front.map((one) => one.tokens_per_s_gpu)), [HEIGHT - FOOT, TOP]).nice();
        return (
          <>
            <svg class="figure" width={width} height={HEIGHT} role="group" aria-label={`${rows.length} plans; the table below lists them`}>
              <Below x={x} top={HEIGHT - FOOT} tall={HEIGHT - FOOT - TOP} each={110} />
              <Beside y={y} left={LEFT} wide={width - LEFT - RIGHT} written={count} />
              <text class="tick" x={width - RIGHT} y={HEIGHT - 4} text-anchor="end">needs at most, GiB</text>
              <text class="tick" x={4} y={HEIGHT - 4}>tokens/s/GPU ↑</text>
              <line class="limit" x1={x(found.limit_bytes / GIB)} x2={x(found.limit_bytes / GIB)} y1={TOP} y2={HEIGHT - FOOT} />
              {front.length > 1 && <path class="front" d={`M${front.map((one) => `${x(one.device_bytes.high / GIB)},${y(one.tokens_per_s_gpu)}`).join("L")}`} />}
              {rows.map((one) => (
                <circle
                  key={JSON.stringify(one.layout) + one.recompute + one.precision + one.micro_batch_size}
                  class={`plan ${one.verdict === "fits" ? "" : "tight"}`}
                  cx={x(one.device_bytes.high / GIB)}
                  cy={y(one.tokens_per_s_gpu)}
                  r={5}
                  tabindex={0}
                  role="button"
                  aria-label={`${layoutOf(one)}, recompute ${one.recompute}: ${gib(one.device_bytes.high, 1)} GiB, ${count(Math.round(one.tokens_per_s_gpu))} tokens/s/GPU`}
                  onClick={() => open(one)}
                  onKeyDown={(event) => event.key === "Enter" && open(one)}
                  onPointerMove={(event) => setSpot({ x: event.offsetX, y: event.offsetY, content: <><strong>{layoutOf(one)}</strong>, recompute {one.recompute}<br />needs up to {gib(one.device_bytes.high, 1)} GiB, {count(Math.round(one.tokens_per_s_gpu))} tokens/s/GPU; limited by {one.limited_by}</> })}
                  onPointerLeave={() => setSpot(null)}
                />
              ))}
            </svg>
            <Tip at={spot} width={width} />
            <p class="legend">
              <span>● a plan: press it to open it</span>
              <span>╌ what a plan may take, {gib(found.limit_bytes, 1)} GiB</span>
              <span>— the front: nothing that fits is faster with less memory</span>
            </p>
          </>
        );
      }}
    </Figure>
  );
};
