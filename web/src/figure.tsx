// A figure with its heading, and buttons that hand it out as SVG or PNG.
import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";
import { Linked } from "./term";
import { savePng, saveSvg } from "./save";
import { useWidth } from "./width";

export const Figure = ({ title, name, children, note }: {
  title: string;
  name: string;
  children: (width: number) => ComponentChildren;
  note?: ComponentChildren;
}) => {
  const [box, width] = useWidth<HTMLDivElement>();
  const whole = useRef<HTMLElement>(null);
  const svg = () => whole.current?.querySelector<SVGSVGElement>("svg.figure");
  return (
    <section class="card" ref={whole} aria-label={title}>
      <header class="card-head">
        <h2>{title}</h2>
        <span class="tools">
          <button type="button" class="quiet" onClick={() => svg() && saveSvg(name, svg()!)}>SVG</button>
          <button type="button" class="quiet" onClick={() => svg() && void savePng(name, svg()!)}>PNG</button>
        </span>
      </header>
      <div ref={box} class="canvas">{children(width)}</div>
      {note}
    </section>
  );
};

export const Legend = ({ of }: { of: readonly (readonly [string, string])[] }) => (
  <p class="legend">
    {of.map(([name, colour]) => (
      <span key={name}>
        <i style={{ background: colour }} /> <Linked>{name}</Linked>
      </span>
    ))}
  </p>
);
