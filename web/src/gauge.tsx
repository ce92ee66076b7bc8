// How much of a GPU a phase takes: surely, and up to; what is beyond its memory is red.
import type { Bounds } from "./documents";
import { gib } from "./figures";

const percentOf = (bytes: number, most: number): string => `${((100 * Math.max(0, bytes)) / most).toFixed(2)}%`;

/** `far` is the most of several gauges that stand on one axis. */
export const Gauge = ({ device, limit, label, far = device.high }: { device: Bounds; limit: number; label: string; far?: number }) => {
  const most = Math.max(limit * 1.04, far * 1.02);
  const part = (from: number, to: number, kind: string) =>
    to > from && <i class={kind} style={{ left: percentOf(from, most), width: percentOf(to - from, most) }} />;
  const { low, high } = device;
  return (
    <span class="gauge" role="img" aria-label={`${label}: ${gib(low, 1)} to ${gib(high, 1)} of ${gib(limit, 1)} GiB`}>
      {part(0, Math.min(low, limit), "sure")}
      {part(limit, low, "sure over")}
      {part(low, Math.min(high, limit), "upto")}
      {part(Math.max(low, limit), high, "upto over")}
      <b style={{ left: percentOf(limit, most) }} />
    </span>
  );
};
