// What is alive at a moment: areas by size, and a table that can be searched.
import { type HierarchyRectangularNode, hierarchy, treemap, treemapSquarify } from "d3-hierarchy";
import { useMemo, useState } from "preact/hooks";
import { PARTS, colourOf } from "./colours";
import type { Moment, Tensor } from "./documents";
import { Figure, Legend } from "./figure";
import { count, exact, size } from "./figures";
import { Table } from "./table";
import { type Spot, Tip } from "./tip";

const HEIGHT = 260;
const MOST = 400;

type Node = { readonly part: string; readonly name: string; readonly bytes: number; readonly tensor?: Tensor; readonly children?: readonly Node[] };

/** Categories, and in them their tensors; of very many the small ones of a category stand together. */
const grouped = (tensors: readonly Tensor[]): Node => {
  const largest = new Set([...tensors].sort((one, other) => other.bytes - one.bytes).slice(0, MOST));
  const children = PARTS.map((part) => {
    const own = tensors.filter((one) => one.part === part);
    const rest = own.filter((one) => !largest.has(one));
    const nodes: Node[] = own.filter((one) => largest.has(one)).map((tensor) => ({ part, name: tensor.name, bytes: tensor.bytes, tensor }));
    if (rest.length) nodes.push({ part, name: `${rest.length} small tensors`, bytes: rest.reduce((sum, one) => sum + one.bytes, 0) });
    return { part, name: part, bytes: 0, children: nodes };
  });
  return { part: "", name: "", bytes: 0, children: children.filter((one) => one.children.length) };
};

const shapeOf = (tensor: Tensor): string => `[${tensor.local_shape.join(", ")}]`;

const Hint = ({ node }: { node: Node }) => (
  <>
    <strong>{node.name}</strong>
    <br />
    {node.part}, {size(node.bytes)}
    {node.tensor && (
      <>
        : {node.tensor.count > 1 && `${count(node.tensor.count)} × `}{node.tensor.shape} = {shapeOf(node.tensor)} {node.tensor.dtype}
        <br />
        {node.tensor.why}
      </>
    )}
  </>
);

/** A name in one line: what is in the middle of a long one is left out. */
export const middle = (name: string, most: number): string =>
  name.length <= most ? name : `${name.slice(0, Math.floor(most / 3))}…${name.slice(name.length - (most - Math.floor(most / 3) - 1))}`;

/** What of a name tells it from its neighbours: its end, without the layers and the chunk. */
const end = (name: string): string => name.replace(/^layers\.[\d-]+\./, "").replace(/ chunk \d+$/, "");

const columns = [
  { head: "tensor", left: true, whole: true, value: (one: Tensor) => one.name, shown: (one: Tensor) => <span title={one.name}>{middle(one.name, 46)}</span> },
  { head: "part", left: true, whole: true, value: (one: Tensor) => one.part, shown: (one: Tensor) => <><i class="swatch" style={{ background: colourOf(one.part) }} /> {one.part}</> },
  { head: "shape", left: true, value: (one: Tensor) => one.shape, title: "what it is sharded by" },
  { head: "on this GPU", left: true, whole: true, value: shapeOf },
  { head: "dtype", left: true, value: (one: Tensor) => one.dtype },
  { head: "count", value: (one: Tensor) => one.count, shown: (one: Tensor) => count(one.count) },
  { head: "size", whole: true, value: (one: Tensor) => one.bytes, shown: (one: Tensor) => <span title={exact(one.bytes)}>{size(one.bytes)}</span> },
  { head: "why alive", left: true, value: (one: Tensor) => one.why },
];

export const Tensors = ({ found }: { found: Moment }) => {
  const [search, setSearch] = useState("");
  const [spot, setSpot] = useState<Spot | null>(null);
  const tree = useMemo(() => grouped(found.tensors), [found]);
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const matching = found.tensors.filter((one) => {
    const text = `${one.name} ${one.part} ${one.dtype} ${one.why} ${one.shape}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const sum = matching.reduce((total, one) => total + one.bytes, 0);
  const legend = PARTS.filter((part) => found.tensors.some((one) => one.part === part)).map((part) => {
    const bytes = found.tensors.reduce((total, one) => total + (one.part === part ? one.bytes : 0), 0);
    return [`${part} ${size(bytes)}`, colourOf(part)] as const;
  });
  return (
    <>
      <Figure title={`Alive on stage ${found.pp_rank}: ${found.event}`} name={`tensors-stage-${found.pp_rank}`} note={<Legend of={legend} />}>
        {(width) => {
          const root = hierarchy<Node>(tree, (node) => node.children as Node[] | undefined).sum((node) => node.bytes).sort((one, other) => (other.value ?? 0) - (one.value ?? 0));
          const leaves = treemap<Node>().tile(treemapSquarify).size([width, HEIGHT]).paddingInner(1).paddingOuter(1)(root).leaves() as HierarchyRectangularNode<Node>[];
          return (
            <>
              <svg class="figure" width={width} height={HEIGHT} role="img" aria-label={`${found.tensors.length} tensors, ${size(found.allocated_bytes)}; the table below lists them`}>
                {leaves.map((leaf) => {
                  const [wide, tall] = [leaf.x1 - leaf.x0, leaf.y1 - leaf.y0];
                  const letters = Math.floor((wide - 8) / 6.4);
                  return (
                    <g
                      key={`${leaf.data.part} ${leaf.data.name} ${leaf.x0} ${leaf.y0}`}
                      class="leaf"
                      onPointerMove={(event) => setSpot({ x: event.offsetX, y: event.offsetY, content: <Hint node={leaf.data} /> })}
                      onPointerLeave={() => setSpot(null)}
                      onClick={() => setSearch(leaf.data.tensor ? leaf.data.name : leaf.data.part)}
                    >
                      <rect fill={colourOf(leaf.data.part)} x={leaf.x0} y={leaf.y0} width={Math.max(0, wide)} height={Math.max(0, tall)} />
                      {letters > 4 && tall > 16 && (
                        <text class="inside" x={leaf.x0 + 4} y={leaf.y0 + 13}>{middle(end(leaf.data.name), letters)}</text>
                      )}
                    </g>
                  );
                })}
              </svg>
              <Tip at={spot} width={width} />
            </>
          );
        }}
      </Figure>
      <section class="card" aria-label="Tensors">
        <header class="card-head">
          <h2>{count(found.tensors.length)} tensors, <span data-bytes={found.allocated_bytes}>{size(found.allocated_bytes)}</span></h2>
          <label class="search">
            <span class="only-read">Search tensors</span>
            <input type="search" placeholder="Search: name, part, dtype, reason" value={search} onInput={(event) => setSearch(event.currentTarget.value)} />
          </label>
        </header>
        {words.length > 0 && <p>{count(matching.length)} of them, {size(sum)}</p>}
        <Table rows={matching} columns={columns} label="Tensors" keyOf={(one) => `${one.part} ${one.name} ${one.local_shape} ${one.dtype} ${one.why}`} sorted={[6, true]} most={15} />
      </section>
    </>
  );
};
