// Patterns of figures: what may be taken, and the engine of reinforcement learning.
export const Hatch = () => (
  <defs>
    <pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
      <line class="hatch" x1="0" x2="0" y1="0" y2="6" />
    </pattern>
    <pattern id="hatch-engine" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)">
      <line class="hatch engine" x1="0" x2="0" y1="0" y2="6" />
    </pattern>
  </defs>
);
