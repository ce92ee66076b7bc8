// A table that sorts by the column whose head is pressed.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

export type Column<Row> = {
  readonly head: string;
  readonly title?: string;
  readonly value: (row: Row) => string | number;
  readonly shown?: (row: Row) => ComponentChildren;
  readonly left?: boolean;
  /** Whether its cells are never broken into lines. */
  readonly whole?: boolean;
};

export const Table = <Row,>({ rows, columns, label, most = 100, pressed, keyOf, sorted = null }: {
  rows: readonly Row[];
  columns: readonly Column<Row>[];
  label: string;
  most?: number;
  pressed?: (row: Row) => void;
  keyOf: (row: Row) => string;
  sorted?: readonly [number, boolean] | null;
}) => {
  const [order, setOrder] = useState<readonly [number, boolean] | null>(sorted);
  const [limit, setLimit] = useState(most);
  const by = order && columns[order[0]];
  const compare = (one: Row, other: Row) => {
    const [a, b] = [by!.value(one), by!.value(other)];
    return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  };
  const all = by ? [...rows].sort((one, other) => (order[1] ? -1 : 1) * compare(one, other)) : rows;
  const press = (place: number) =>
    setOrder(order?.[0] === place ? [place, !order[1]] : [place, typeof (rows[0] && columns[place]!.value(rows[0])) === "number"]);
  return (
    <div class="scroll">
      <table class="cards" aria-label={label}>
        <thead>
          <tr>
            {columns.map((column, place) => (
              <th
                key={column.head}
                class={column.left ? "left" : ""}
                title={column.title}
                aria-sort={order?.[0] === place ? (order[1] ? "descending" : "ascending") : "none"}
              >
                <button type="button" onClick={() => press(place)}>
                  {column.head} {order?.[0] === place ? (order[1] ? "▾" : "▴") : ""}
                </button>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {all.slice(0, limit).map((row) => (
            <tr
              key={keyOf(row)}
              class={pressed ? "pressable" : ""}
              {...(pressed && {
                tabIndex: 0,
                onClick: () => pressed(row),
                onKeyDown: (event: KeyboardEvent) => event.key === "Enter" && event.target === event.currentTarget && pressed(row),
              })}
            >
              {columns.map((column) => (
                <td key={column.head} data-head={column.head} class={`${column.left ? "left" : ""} ${column.whole ? "unbroken" : ""}`}>
                  {column.shown ? column.shown(row) : column.value(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {all.length > limit && (
        <button type="button" class="quiet" onClick={() => setLimit(all.length)}>
          Show all {all.length.toLocaleString("en-US")} rows
        </button>
      )}
    </div>
  );
};
