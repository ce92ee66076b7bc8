// The axis of figures whose bars are GiB: lines behind the bars, numbers below.
import type { ScaleLinear } from "d3-scale";

/** Height of the numbers below a figure. */
export const FOOT = 22;

/** `each`: the least width of a number, in pixels. */
export const GibAxis = ({ x, width, height, each }: { x: ScaleLinear<number, number>; width: number; height: number; each: number }) => (
  <>
    {x.ticks(Math.max(3, width / each)).map((tick) => (
      <g key={tick}>
        <line class="grid" x1={x(tick)} x2={x(tick)} y1={0} y2={height - FOOT} />
        <text class="tick" x={x(tick)} y={height - 6} text-anchor="middle">{tick}</text>
      </g>
    ))}
    <text class="tick" x={width - 4} y={height - 6} text-anchor="end">GiB</text>
  </>
);
