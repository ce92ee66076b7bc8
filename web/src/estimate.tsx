// The view of one run.
import { useEffect, useState } from "preact/hooks";
import { useAnswer } from "./asking";
import { AdviceCard } from "./advice";
import { Bars } from "./bars";
import { requestOf, usePage } from "./context";
import { Controls } from "./controls";
import type { Estimate, Lanes, Moment } from "./documents";
import type { Loading } from "./engine";
import { EvidenceCard } from "./evidence";
import { Exports } from "./exports";
import { Head } from "./head";
import { Phases } from "./phases";
import { Refused } from "./refused";
import { Resolved } from "./resolved";
import { Source } from "./source";
import { StageFigures } from "./stage";
import { Tensors } from "./tensors";
import { Timeline } from "./timeline";
import { tone } from "./colours";
import { Assumptions, OtherGpus, Warnings } from "./verdict";

const WIDE = "(min-width: 901px)";

/** Whether settings stand beside the figures, and not above them, folded. */
const useWide = (): boolean => {
  const [wide, setWide] = useState(() => matchMedia(WIDE).matches);
  useEffect(() => {
    const media = matchMedia(WIDE);
    const change = () => setWide(media.matches);
    media.addEventListener("change", change);
    return () => media.removeEventListener("change", change);
  }, []);
  return wide;
};

const Results = ({ found, current, stale, busy }: { found: Estimate; current: boolean; stale: boolean; busy: boolean }) => {
  const { engine, state, evidence } = usePage();
  const stage = found.stages.find((one) => one.pp_rank === state.stage)?.pp_rank ?? found.peak.pp_rank;
  const request = requestOf(state.run);
  const lanes = useAnswer<Lanes>(engine, "lanes", current ? request : null);
  const lane = lanes.found?.stages.find((one) => one.pp_rank === stage);
  const places = lane?.columns.index ?? [];
  const moment = state.moment !== undefined && places.includes(state.moment) && state.stage === stage ? state.moment : undefined;
  const place = moment ?? lane?.peak_moment;
  const alive = useAnswer<Moment>(engine, "moment", current && lanes.fresh && lane && place !== null && place !== undefined ? { ...request, stage, moment: place } : null);
  const own = found.stages.find((one) => one.pp_rank === stage);
  const bad = tone(found.verdict.verdict) !== "good";
  const refused = current && lanes.error !== undefined;
  const old = (fresh: boolean) => (current && !fresh ? "stale" : ""); // what the settings before had, beside an estimate of these
  return (
    <div class={stale ? "results stale" : "results"} aria-busy={busy}>
      <Head found={found} speed={lanes.found && lanes.fresh && !refused ? lanes.found.speed : undefined} />
      {evidence && <EvidenceCard predicted={own?.breakdown_bytes} />}
      {bad && <AdviceCard found={found} />}
      <Warnings warnings={found.warnings} />
      <Phases found={found} />
      <Bars found={found} stage={stage} />
      {lanes.found && lane && !refused && (
        <div class={old(lanes.fresh)}>
          <Timeline lanes={lanes.found} stage={stage} moment={moment} parts={own?.breakdown_bytes ?? {}} />
        </div>
      )}
      {current && lanes.error && <p class="refusal">{lanes.error}</p>}
      {!bad && <AdviceCard found={found} />}
      {alive.found && alive.found.pp_rank === stage && !refused && (
        <div class={old(alive.fresh)}>
          <Tensors found={alive.found} />
        </div>
      )}
      {current && alive.error && <p class="refusal">{alive.error}</p>}
      <section class="card" aria-label="GPUs">
        <h2>On other GPUs</h2>
        <OtherGpus found={found} />
      </section>
      {own && <StageFigures found={found} stage={own} />}
      {!evidence && <EvidenceCard predicted={undefined} />}
      <Exports stage={stage} moment={lanes.fresh ? (place ?? undefined) : undefined} />
      <Resolved found={found} />
      <Assumptions assumptions={found.assumptions} />
    </div>
  );
};

/** How much of the engine is there, while it loads into the page; `alone` where there is nothing else to see. */
const Starting = ({ alone }: { alone: boolean }) => {
  const [loading, setLoading] = useState<Loading | null>(null);
  useEffect(() => {
    const hear = (event: Event) => setLoading((event as CustomEvent<Loading>).detail);
    const ready = () => setLoading(null);
    window.addEventListener("loading-engine", hear);
    window.addEventListener("ready-engine", ready);
    return () => {
      window.removeEventListener("loading-engine", hear);
      window.removeEventListener("ready-engine", ready);
    };
  }, []);
  if (!alone && !loading) return null;
  const share = loading?.total ? Math.min(1, loading.bytes / loading.total) : undefined;
  return (
    <section class="card busy" role="status">
      <p>The engine starts …</p>
      {loading && (
        <p class="row">
          {share !== undefined && <progress max={1} value={share} aria-label="Share of the engine that is loaded" />}
          <span>{(loading.bytes / 1e6).toFixed(1)}{loading.total ? ` of ${(loading.total / 1e6).toFixed(1)}` : ""} MB. It is the library itself: nothing that you type leaves this tab, and the next start needs no network.</span>
        </p>
      )}
    </section>
  );
};

export const EstimateView = () => {
  const { engine, state } = usePage();
  const { found, error, questions, busy, fresh } = useAnswer<Estimate>(engine, "estimate", requestOf(state.run));
  const wide = useWide();
  useEffect(() => {
    document.title = found && error === undefined ? `${found.model.name.split("/").at(-1) || "run"}: ${found.verdict.verdict}, Megatron memory` : "Megatron memory";
  }, [found, error]);
  return (
    <main class={engine.live ? "estimate" : "whole"}>
      {engine.live && (
        <aside>
          <Source />
          <details open={wide} class="fold">
            <summary>Settings</summary>
            <Controls found={error === undefined ? found : undefined} current={fresh || error !== undefined} />
          </details>
        </aside>
      )}
      <div>
        {error !== undefined && <Refused key={error} error={error} questions={questions ?? []} />}
        <Starting alone={!found && busy} />
        {found && error === undefined && <Results found={found} current={fresh} stale={busy} busy={busy} />}
      </div>
    </main>
  );
};
