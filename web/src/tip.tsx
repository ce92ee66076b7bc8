// What stands beside the pointer while it is over a figure.
import type { ComponentChildren } from "preact";

export type Spot = { readonly x: number; readonly y: number; readonly content: ComponentChildren };

export const Tip = ({ at, width }: { at: Spot | null; width: number }) =>
  at && (
    <div class="tip" role="status" style={{ left: `${Math.min(at.x + 14, Math.max(0, width - 290))}px`, top: `${at.y + 14}px` }}>
      {at.content}
    </div>
  );
