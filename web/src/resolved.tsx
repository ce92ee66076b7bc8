// Every setting of a run as it was resolved: given, derived or decided.
import { useState } from "preact/hooks";
import type { Estimate } from "./documents";

const written = (value: unknown): string =>
  value === null ? "none" : Array.isArray(value) ? value.map(written).join(", ") || "none" : typeof value === "object" ? JSON.stringify(value) : String(value);

const flat = (found: Estimate): (readonly [string, string])[] => {
  const { env, ...training } = found.training;
  const parts = [found.layout, training, env ?? {}, (found.model as { config?: object }).config ?? {}];
  return parts.flatMap((part) => Object.entries(part).map(([name, value]) => [name, written(value)] as const));
};

export const Resolved = ({ found }: { found: Estimate }) => {
  const [search, setSearch] = useState("");
  const [open, setOpen] = useState(false);
  const rows = open ? flat(found).filter(([name, value]) => `${name} ${value}`.includes(search.trim())) : [];
  return (
    <section class="card" aria-label="All settings">
      <details onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>All settings as resolved</summary>
        <p class="search"><input type="search" aria-label="Search settings" placeholder="Search" value={search} onInput={(event) => setSearch(event.currentTarget.value)} /></p>
        <dl class="settings">
          {rows.map(([name, value]) => (
            <div key={name}><dt>{name}</dt><dd>{value}</dd></div>
          ))}
        </dl>
        <p class="quiet-text">{found.model.source}</p>
      </details>
    </section>
  );
};
