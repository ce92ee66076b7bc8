// The page's own functions, without a browser: addresses, names of settings, curves, words.
import assert from "node:assert/strict";
import { test } from "node:test";
import { EMPTY, type State, addressOf, stateOf } from "../src/address.ts";
import { runAmong, runOf, textOf } from "../src/files.ts";
import { counted, ranges, size, tickSeconds } from "../src/figures.ts";
import { fieldsOf } from "../src/refused.tsx";
import { middle } from "../src/tensors.tsx";
import { curveOf, gapOf, topOf } from "../src/timeline.tsx";
import { GLOSSARY } from "../src/glossary.ts";
import { LABELS, NUMBERS } from "../src/controls.tsx";
import { PARTS } from "../src/colours.ts";
import { DOES } from "../src/phases.tsx";
import { wordOf } from "../src/term.tsx";
import { worded } from "../src/words.ts";

const state = (change: Partial<State>): State => ({ ...EMPTY, ...change });

test("a state comes back from its address", async () => {
  const states = [
    EMPTY,
    state({ run: { model: "a/b", num_gpus: 8, settings: { seq_length: 8192, sequence_parallel: true, recompute_modules: ["mlp", "moe"], gpu: "H200", fp8: null } } }),
    state({ run: { text: "#!/bin/bash\necho ä", settings: { set_variables: { NNODES: "4", "1": "x=y&z" } as never } }, file: "run.sh" }),
    state({ run: { model: "a/run.sh", files: { "a/run.sh": "bash", "a/models/m.sh": "ä" }, settings: {} } }),
    state({ view: "plan", axes: { tp: "1,2" }, objective: "memory", planned: true, stage: 3, moment: -1, phase: "weight_sync" }),
    state({ view: "compare", pins: [{ label: "tp 2", run: { model: "m", settings: { seq_length: 1 } } }] }),
    state({ run: { model: "m", settings: { word: "8", yes: "true", list: "[1]" } } }), // words that look like other values stay words
  ];
  for (const one of states) assert.deepEqual(JSON.parse(JSON.stringify(await stateOf(await addressOf(one)))), JSON.parse(JSON.stringify(one)));
});

test("what is no address is refused", async () => {
  assert.equal(await stateOf(""), null);
  await assert.rejects(stateOf("#/estimate?num_gpus=many"), /no number of GPUs/);
  await assert.rejects(stateOf("#/estimate?text=%%%"), /missing or changed/);
});

test("options of questions are fields", () => {
  assert.deepEqual(fieldsOf("--set NNODES=VALUE --set 1=VALUE --num-gpus N --vocab-size N"), [
    { name: "NNODES", kind: "variable" }, { name: "1", kind: "variable" }, { name: "num_gpus", kind: "gpus" }, { name: "vocab_size", kind: "setting" },
  ]);
  assert.deepEqual(fieldsOf(""), []);
});

test("sentences are in the page's words", () => {
  assert.equal(worded("`plan` searches layouts; --min-num-gpus finds how many, give --set TP=1"), "Plan searches layouts; a search without a number of GPUs finds how many, give TP=1");
  assert.equal(worded("(--no-expandable-segments turns it off)"), "(expandable_segments off turns it off)");
  assert.equal(worded("`plan --min-num-gpus` finds how many GPUs hold it"), "Plan without a number of GPUs finds how many GPUs hold it");
  assert.equal(worded("tp 2--4 and well-known words stay"), "tp 2--4 and well-known words stay");
});

test("files that are missing are dropped", () => {
  assert.equal(
    worded("taken from $MODEL_ARGS: (unknown)/models/m.sh, which line 5 sources, is not there or not beside the script (--follow opens files elsewhere); give --set MODEL_ARGS=VALUE"),
    "taken from $MODEL_ARGS: …/models/m.sh, which line 5 sources, is missing: drop it on the page; give MODEL_ARGS=VALUE",
  );
  assert.equal(worded("'grpo.yaml', on which the text builds, is not there; put it beside the file"), "'grpo.yaml', on which the text builds, is not there; drop it on the page");
});

test("the run among files is one that no other names, a script first", () => {
  assert.equal(runAmong({ "a/models/m.sh": "MODEL_ARGS=()", "a/run.sh": "source models/m.sh", "a/README.yaml": "x: 1" }), "a/run.sh");
  assert.equal(runAmong({ "base.yaml": "a: 1", "run.yaml": "defaults: base.yaml" }), "run.yaml");
});

test("a file that the run names stands beside it, any other is a run of its own", () => {
  const now = { text: "source models/m.sh", num_gpus: 8, settings: { seq_length: 1 } };
  const both = runOf({ "m.sh": "X=1" }, now, "run.sh").run;
  assert.deepEqual(both, { model: "run.sh", files: { "run.sh": now.text, "m.sh": "X=1" }, num_gpus: 8, settings: { seq_length: 1 } });
  assert.deepEqual(runOf({ "n.sh": "source m.sh" }, both, undefined), { run: { text: "source m.sh", settings: {} }, file: "n.sh" });
  assert.deepEqual(runOf({ "n.sh": "source z.sh", "z.sh": "" }, both, undefined).run, { model: "n.sh", files: { "n.sh": "source z.sh", "z.sh": "" }, settings: {} });
  assert.equal(textOf(both), now.text);
});

test("what the page names stands in the glossary, and no name there means two words", () => {
  const heads = ["decided by", "step of 1,024 samples", "tokens/s/GPU", "MFU", "largest overhead", "NCCL (7 communicators)"];
  const names = [...LABELS.map(([, label]) => label), ...NUMBERS.map(([, label]) => label), ...PARTS, ...Object.values(DOES).map((does) => `to ${does}`), ...heads];
  assert.deepEqual(names.filter((name) => !wordOf(name)), []);
  const all = GLOSSARY.flatMap(({ word, also }) => [word, ...also]);
  assert.equal(new Set(all.map((one) => one.toLowerCase())).size, all.length);
});

test("figures", () => {
  assert.deepEqual([size(2 ** 30), size(2 ** 20), size(12)], ["1.00 GiB", "1.0 MiB", "12 B"]);
  assert.deepEqual([counted(1, "GPU"), counted(1024, "GPU"), counted(2, "microbatch", "microbatches")], ["1 GPU", "1,024 GPUs", "2 microbatches"]);
  assert.equal(ranges([0, 1, 2, 7, 9, 10]), "0–2, 7, 9–10");
  assert.deepEqual([tickSeconds(0.05, 0.3), tickSeconds(2, 10)], ["50 ms", "2 s"]);
  assert.equal(middle("abcdefghij", 7), "ab…ghij");
});

const lane = {
  pp_rank: 0, steady_allocated_bytes: 10, peak_allocated_bytes: 30, peak_moment: 1,
  left_out: { behind: 1, moments: 4, microbatches: 2, repeats: 1 },
  shapes: [{ at: [0.25, 0.75], below_bytes: [6, 0] }],
  columns: {
    index: [0, 1, 6], event: [0, 0, 1], start_s: [0, 1, 5], end_s: [1, 2, 6], start_bytes: [10, 12, 20], highest_bytes: [20, 30, 25],
    end_bytes: [12, 20, 10], chunk: [0, 0, 0], microbatch: [0, 1, 3], beside_chunk: [null, null, null], beside_microbatch: [null, null, null],
    in_flight: [1, 2, 1], shape: [null, 0, null], label: [0, 0, 0],
  },
} as never;

test("a curve goes through every point of a pass", () => {
  const same = (value: number) => value * 100;
  assert.equal(curveOf(lane, [1], same, (bytes) => bytes), "100.00,12.00L125.00,24.00L175.00,30.00L200.00,20.00");
  assert.equal(topOf(lane, 1), 1.75); // where the pass has most
  assert.equal(topOf(lane, 0), 0.5);
});

test("microbatches that are left out are a gap", () => {
  assert.deepEqual(gapOf(lane), [2, 5]);
  assert.equal(gapOf({ ...(lane as object), left_out: null } as never), null);
});
