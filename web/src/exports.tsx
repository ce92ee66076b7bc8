// What the page hands out of a run: documents, tables, the page itself frozen, and how to launch it.
import type { Tool } from "./tools";
import { useState } from "preact/hooks";
import { fromBase64 } from "./address";
import { requestOf, usePage } from "./context";
import type { Launch } from "./documents";
import { sentence } from "./engine";
import { save } from "./save";

type Export = { readonly name: string; readonly text: string; readonly encoding: string };

export const copy = async (text: string, say: (sentence: string) => void): Promise<void> => {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
  } catch {
    say("The browser does not let this page copy; select the text instead.");
  }
};

const TYPES: Readonly<Record<string, string>> = { csv: "text/csv", html: "text/html", json: "application/json", pickle: "application/octet-stream" };

/** Buttons that hand out a document of the engine as a file. */
export const Exports = ({ stage, moment }: { stage: number; moment: number | undefined }) => {
  const { engine, state, say } = usePage();
  const request = requestOf(state.run);
  const hand = (format: string, what: string) => async () => {
    try {
      if (format === "json" && what !== "trace") {
        const found = await engine.ask<{ schema: string }>(what as Tool, { ...request, ...(what === "estimate" ? {} : { stage }) });
        save(`${what}.json`, `${JSON.stringify(found, null, 1)}\n`, TYPES["json"]!);
        return;
      }
      const found = await engine.ask<Export>("export", { ...request, what, format, stage, ...(what === "tensors" && moment !== undefined ? { moment } : {}) });
      save(found.name, found.encoding === "base64" ? fromBase64(found.text) : found.text, TYPES[format]!);
    } catch (error) {
      say(sentence(error));
    }
  };
  const link = () => void copy(location.href, say);
  return (
    <section class="card exports" aria-label="Export">
      <h2>Take it with you</h2>
      <p class="row">
        <button type="button" onClick={link}>Copy link</button>
        <button type="button" onClick={hand("json", "estimate")}>JSON</button>
        {engine.live && (
          <>
            <button type="button" onClick={hand("json", "timeline")}>Timeline JSON</button>
            <button type="button" onClick={hand("csv", "stages")}>Stages CSV</button>
            <button type="button" onClick={hand("csv", "moments")}>Moments CSV</button>
            <button type="button" onClick={hand("csv", "tensors")}>Tensors CSV</button>
            <button type="button" title="for ui.perfetto.dev and chrome://tracing" onClick={hand("json", "trace")}>Perfetto trace</button>
            <button type="button" title="every allocation of the stage, for pytorch.org/memory_viz" onClick={hand("pickle", "snapshot")}>torch snapshot</button>
            <button type="button" onClick={hand("html", "report")}>HTML report</button>
          </>
        )}
      </p>
      {engine.live && <LaunchWords />}
    </section>
  );
};

const FORMS = [["megatron_lm", "Megatron-LM"], ["yaml", "YAML"], ["bridge", "Bridge"]] as const;

const LaunchWords = () => {
  const { engine, state, say } = usePage();
  const [form, setForm] = useState<"megatron_lm" | "yaml" | "bridge">("megatron_lm");
  const [found, setFound] = useState<{ readonly key: string; readonly launch: Launch } | null>(null);
  const request = requestOf(state.run);
  const key = JSON.stringify(request);
  const launch = found?.key === key ? found.launch : null;
  const open = async () => {
    try {
      setFound({ key, launch: await engine.ask<Launch>("launch", request) });
    } catch (error) {
      say(sentence(error));
    }
  };
  if (!launch) return <button type="button" onClick={() => void open()}>Launch arguments</button>;
  const beside = Object.entries(launch.without_argument);
  return (
    <div class="launch">
      <p class="row" role="tablist" aria-label="Form of the launch arguments">
        {FORMS.map(([name, label]) => <button key={name} type="button" role="tab" aria-selected={form === name} onClick={() => setForm(name)}>{label}</button>)}
        <button type="button" onClick={() => void copy(launch[form], say)}>Copy</button>
      </p>
      <pre tabIndex={0}>{launch[form]}</pre>
      {beside.length > 0 && <p class="quiet-text">No argument says: {beside.map(([name, value]) => `${name}=${JSON.stringify(value)}`).join(", ")}</p>}
    </div>
  );
};
