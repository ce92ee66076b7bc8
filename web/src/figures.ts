// Figures as people read them. Bytes become GiB only here.
export const GIB = 2 ** 30;

const digits = (value: number, places: number) =>
  value.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places });

export const gib = (bytes: number, places = 2): string => digits(bytes / GIB, places);
export const size = (bytes: number): string =>
  bytes >= GIB / 10 ? `${gib(bytes)} GiB` : bytes >= 2 ** 20 / 10 ? `${digits(bytes / 2 ** 20, 1)} MiB` : bytes >= 1024 ? `${digits(bytes / 1024, 1)} KiB` : `${bytes} B`;
export const exact = (bytes: number): string => `${digits(bytes, 0)} bytes`;
export const count = (value: number): string => digits(value, 0);
export const percent = (value: number, places = 0): string => `${digits(100 * value, places)} %`;
export const seconds = (value: number): string =>
  value >= 1 ? `${digits(value, 3)} s` : value >= 1e-3 ? `${digits(value * 1e3, 2)} ms` : `${digits(value * 1e6, 1)} µs`;
export const parameters = (value: number): string =>
  value >= 1e12 ? `${digits(value / 1e12, 2)} T` : value >= 1e9 ? `${digits(value / 1e9, 1)} B` : `${digits(value / 1e6, 0)} M`;

/** So many of something: `1 GPU`, `8 GPUs`. */
export const counted = (many: number, word: string, several = `${word}s`): string => `${count(many)} ${many === 1 ? word : several}`;

/** Neighbouring numbers as ranges: `0-3, 7`. */
export const ranges = (numbers: readonly number[]): string => {
  const found: [number, number][] = [];
  for (const one of numbers) {
    const last = found.at(-1);
    if (last && last[1] + 1 === one) last[1] = one;
    else found.push([one, one]);
  }
  return found.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`)).join(", ");
};

/** Seconds along an axis: all of one unit, with no more digits than tell them apart. */
export const tickSeconds = (value: number, end: number): string => {
  const [unit, name] = end >= 1 ? [1, "s"] : end >= 1e-3 ? [1e-3, "ms"] : [1e-6, "µs"];
  return `${Number((value / unit).toPrecision(6)).toLocaleString("en-US")} ${name}`;
};
