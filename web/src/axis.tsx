// Axes of figures: d3's own, drawn into an element of the page; lines go across the figure, behind what it shows.
import { type Axis as D3Axis, axisBottom, axisLeft } from "d3-axis";
import type { ScaleLinear } from "d3-scale";
import { select } from "d3-selection";
import { useLayoutEffect, useRef } from "preact/hooks";

/** Height of the numbers below a figure. */
export const FOOT = 22;

type Linear = ScaleLinear<number, number>;

const Axis = ({ axis, left = 0, top = 0 }: { axis: D3Axis<number>; left?: number; top?: number }) => {
  const ref = useRef<SVGGElement>(null);
  useLayoutEffect(() => {
    const drawn = select(ref.current!).call(axis);
    drawn.select(".domain").remove();
  });
  return <g ref={ref} class="axis" transform={`translate(${left},${top})`} aria-hidden="true" />;
};

/** Numbers below a figure, one in `each` pixels at most; lines of `tall` pixels above them. */
export const Below = ({ x, top, tall, each, written }: { x: Linear; top: number; tall: number; each: number; written?: (value: number) => string }) => {
  const axis = axisBottom<number>(x).ticks(Math.max(3, x.range()[1]! / each)).tickSizeInner(-tall).tickPadding(6);
  return <Axis axis={written ? axis.tickFormat((value) => written(value)) : axis} top={top} />;
};

/** Numbers on the left of a figure; lines of `wide` pixels to their right. */
export const Beside = ({ y, left, wide, written }: { y: Linear; left: number; wide: number; written?: (value: number) => string }) => {
  const axis = axisLeft<number>(y).ticks(5).tickSizeInner(-wide).tickPadding(6);
  return <Axis axis={written ? axis.tickFormat((value) => written(value)) : axis} left={left} />;
};

/** The axis of figures whose bars are GiB. `each`: the least width of a number, in pixels. */
export const GibAxis = ({ x, width, height, each }: { x: Linear; width: number; height: number; each: number }) => (
  <>
    <Below x={x} top={height - FOOT} tall={height - FOOT} each={each} />
    <text class="tick" x={width - 4} y={height - 6} text-anchor="end">GiB</text>
  </>
);
