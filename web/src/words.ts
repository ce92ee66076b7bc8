// Sentences in the words of the page: names of settings in place of options of the command line, views in place of its commands.
const COMMANDS: Readonly<Record<string, string>> = { plan: "Plan", compare: "Compare", advise: "What to change", estimate: "Estimate" };
const OPTIONS: Readonly<Record<string, string>> = {
  "min-num-gpus": "a search without a number of GPUs", "num-gpus": "GPUs", gpu: "GPU", assumptions: "the assumptions below", follow: "the other file",
};

export const worded = (sentence: string): string =>
  sentence
    .replace(/`?(?:megatron-memory )?plan --min-num-gpus`?/g, "Plan without a number of GPUs")
    .replace(/`(plan|compare|advise|estimate)`/g, (_, command: string) => COMMANDS[command] ?? command)
    .replace(/megatron-memory (plan|compare|advise|estimate)( MODEL)?/g, (_, command: string) => COMMANDS[command] ?? command)
    .replace(/\(unknown\)\//g, "…/")
    .replace("is not there or not beside the script (--follow opens files elsewhere)", "is missing: drop it on the page")
    .replace(/([;:]) put it (?:there|at that path|beside the (?:run's )?file|below the script's folder(?:, or open files elsewhere)?)(?:; give --follow)?/g, "$1 drop it on the page")
    .replace(/(^|[\s(,;])--set ([A-Za-z_]\w*|\d+)=/g, "$1$2=")
    .replace(/(^|[\s(,;])--(no-)?([a-z][a-z0-9]*(?:-[a-z0-9]+)*)/g, (_, before: string, no: string | undefined, option: string) => {
      const own = OPTIONS[option] ?? option.replaceAll("-", "_");
      return `${before}${own}${no ? " off" : ""}`;
    });
