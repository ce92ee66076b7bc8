// A part of a figure's width: brushed with the mouse, zoomed with Ctrl and the wheel or two fingers, moved by the keyboard.
import { brushX } from "d3-brush";
import type { ScaleLinear } from "d3-scale";
import { select } from "d3-selection";
import { type ZoomBehavior, type ZoomTransform, zoom, zoomIdentity, zoomTransform } from "d3-zoom";
import { useEffect, useRef, useState } from "preact/hooks";

const CLOSEST = 400;

export type Zoomed = {
  /** The scale of what is shown. */
  readonly x: ScaleLinear<number, number>;
  readonly isPart: boolean;
  /** Closer by a factor, around a place of the whole; farther where it is below 1. */
  readonly by: (factor: number, around: number) => void;
  readonly whole: () => void;
};

/** What is shown of `whole`, a scale over a figure `height` pixels tall; anew where `of` is another. The hook belongs to the figure's svg, which has a `g.brush`. */
export const useZoom = (svg: SVGSVGElement | null, whole: ScaleLinear<number, number>, height: number, of: unknown): Zoomed => {
  const [kept, setKept] = useState<{ readonly of: unknown; readonly transform: ZoomTransform }>({ of, transform: zoomIdentity });
  const behaviour = useRef<ZoomBehavior<SVGSVGElement, unknown> | undefined>(undefined);
  const [left, right] = whole.range() as [number, number];
  useEffect(() => {
    if (!svg) return;
    const extent: [[number, number], [number, number]] = [[left, 0], [right, height]];
    const zooms = zoom<SVGSVGElement, unknown>()
      .scaleExtent([1, CLOSEST])
      .extent(extent)
      .translateExtent(extent)
      .filter((event: Event) => (event instanceof WheelEvent ? event.ctrlKey || event.metaKey : "touches" in event && (event as TouchEvent).touches.length > 1))
      .on("zoom", ({ transform }: { transform: ZoomTransform }) => setKept({ of, transform }));
    behaviour.current = zooms;
    const figure = select(svg).call(zooms);
    figure.call(zooms.transform, zoomIdentity);
    const brush = brushX<unknown>().extent(extent).touchable(false);
    const field = figure.select<SVGGElement>("g.brush");
    brush.on("end", ({ selection }: { selection: [number, number] | null }) => {
      if (!selection) return;
      field.call(brush.clear);
      const now = zoomTransform(svg);
      const [from, to] = selection.map((offset) => now.invertX(offset)) as [number, number];
      const scale = Math.min(CLOSEST, (right - left) / (to - from));
      figure.call(zooms.transform, zoomIdentity.translate(left - scale * from, 0).scale(scale));
    });
    field.call(brush);
    return () => void figure.on(".zoom", null);
  }, [svg, left, right, height, of]);
  const transform = kept.of === of ? kept.transform : zoomIdentity;
  const figure = () => select(svg!);
  return {
    x: transform.rescaleX(whole),
    isPart: transform.k > 1,
    by: (factor, around) => void (svg && behaviour.current && figure().call(behaviour.current.scaleBy, factor, [transform.applyX(whole(around)), 0])),
    whole: () => void (svg && behaviour.current && figure().call(behaviour.current.transform, zoomIdentity)),
  };
};
