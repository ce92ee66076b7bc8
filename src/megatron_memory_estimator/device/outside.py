"""What a process takes on the device outside torch."""

from __future__ import annotations

from ..job.training_job import TrainingJob
from ..modules.context import Context
from .communication import expert_buffers, nccl_terms, userbuffers
from .terms import Term, fixed

CONTEXT = (0.4, 1.0)
"""GiB of a CUDA context: 274 to 636 MiB on torch 1.13 (pytorch PR 86509), 426 on torch 2.10, 758 and 789 on GH200 and A100 with libraries
(litgpt issue 1892, torchrec PR 3580), 1010 on 8 H100 before the first all-to-all (nccl issue 1685)."""
LIBRARIES = (0.05, 0.5)
"""Judgement: GiB of cuDNN, cuBLASLt, JIT kernels and stacks that load in the first steps; no public measurement tells them from the
context. Effect: half a GiB of the device range."""
GRAPH_EXECUTABLES = (0.0, 1.5)
"""Judgement: GiB of instantiated CUDA graphs outside torch; 1347 MiB were seen (Megatron-LM PR 6479, dynamic context parallelism).
Effect: 1.5 GiB at the high end of every run with CUDA graphs."""


def outside_terms(job: TrainingJob, c: Context) -> list[Term]:
    """What the process takes outside torch: CUDA context, libraries, NCCL, expert-parallel buffers."""
    env = job.env
    found = [
        fixed("CUDA context", env.context_gib, *CONTEXT, "pytorch PR 86509; nccl issues 964, 1685; litgpt issue 1892"),
        fixed(
            "CUDA libraries and kernels", env.libraries_gib, *LIBRARIES, "general knowledge; grows in the first steps"
        ),
    ]
    if env.nccl_gib is not None:
        found.append(fixed("NCCL communicators", env.nccl_gib, 0, 0, ""))
    else:
        found.extend(nccl_terms(job))
    found.extend(expert_buffers(job, c))
    if job.training.cuda_graph_impl != "none":
        found.append(
            fixed(
                "CUDA graph executables", None, *GRAPH_EXECUTABLES, "general knowledge; grows with the number of graphs"
            )
        )
    if job.training.tp_comm_overlap:
        found.append(userbuffers(job))
    return found
