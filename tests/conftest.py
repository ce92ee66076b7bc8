"""Which tests wait for `make test-all`: those that take seconds, each beside quick ones of the same thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from .helpers import SWEEP

SLOW = (
    "test_shell.py::test_hundreds_of_corner_cases_are_never_different_from_bash",
    "test_shell.py::test_no_script_of_a_few_bytes_grows[3]", "test_shell.py::test_no_script_of_a_few_bytes_grows[10]",
    "test_shell.py::test_no_script_of_a_few_bytes_grows[17]",
    *(f"test_planner.py::test_random_points_of_a_space_have_the_bytes_of_estimate[{at}]" for at in (4, 5, 7, 8, 9, 10, 13, 15, 16, 17)),
    "test_planner_space.py::test_a_space_holds_every_legal_layout_and_no_other[plain]",
    *(f"test_docs.py::test_generated_blocks_are_current[{page}.md]" for page in (
        "throughput", "advise", "planner", "mcp", "python", "calibrate", "README", "deepseek_v4", "long_context",
    )),
    *(f"test_plan.py::test_a_plan_in_a_narrow_terminal[{width}]" for width in (60, 80, 100)),
    "test_planner_space.py::test_a_space_holds_every_legal_layout_and_no_other[flex]",
    "test_planner.py::test_arrays_of_jobs_give_the_bytes_of_each[zai-org/GLM-5]",
    "test_planner.py::test_arrays_of_jobs_give_the_bytes_of_each[Qwen/Qwen3-Next-80B-A3B-Instruct]",
    "test_plan.py::test_calibration", "test_plan.py::test_published_layouts_beside_the_first_choice",
    "test_help.py::test_every_example_runs[validate]", "test_help.py::test_every_example_runs[mcp --folder ~/configs]",
    "test_help.py::test_every_example_runs[serve --port 0 --allow-hub]",
    "test_legality.py::test_rules_are_sentences_without_the_numbers_of_a_run", "test_legality.py::test_numbers_of_a_fix_are_accepted",
    "test_fuzz_seeds.py::test_a_hunt_finds_every_fault", "test_features.py::test_every_pair_runs_or_is_refused_by_a_rule",
    "test_mcp.py::test_a_request_ends_with_its_time_or_when_it_is_cancelled",
    "test_mcp.py::test_text_of_files_is_read_and_no_file_is_opened",
    "test_planner.py::test_arrays_of_jobs_give_the_step_time_of_each[deepseek-ai/DeepSeek-V3]",
    "test_mcp.py::test_files_below_the_folder_are_opened_and_not_quoted", "test_mcp_summary.py::test_no_plan_says_why",
    "test_plan.py::test_the_text_of_a_plan", "test_plan.py::test_memory_that_may_be_used_is_limited",
    "test_shell.py::test_random_scripts_are_read_as_bash_runs_them[1]",
    "test_choices.py::test_a_choice_is_refused_as_estimate_refuses_it[deepseek-ai/DeepSeek-V4-Flash]",
    "test_choices.py::test_a_choice_is_refused_as_estimate_refuses_it[google/gemma-4-26B-A4B]",
    *(f"test_moments.py::test_moments_that_a_timeline_leaves_out_have_their_tensors_too[settings{at}]" for at in (0, 2)),
    "test_moments.py::test_the_tensors_of_every_moment_add_up_to_it[two at a time]",
    "test_without_numpy.py::test_every_tool_answers_the_same_without_numpy",
    "test_plain_search.py::test_it_finds_what_arrays_find", "test_choices.py::test_the_same_of_random_jobs",
    "test_moments.py::test_lanes_of_many_stages_stay_short",
    "test_choices.py::test_what_is_chosen_over_a_text_is_the_value_of_the_new_request[text1]",
    *(
        f"test_mcp_summary.py::test_sixteen_different_stages_are_small_enough[{model}]"
        for model in (
            "deepseek-ai/DeepSeek-V3", "moonshotai/Kimi-K2-Instruct", "inclusionAI/Ling-1T", "zai-org/GLM-4.5",
            "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16",
        )
    ),
    "test_mcp_summary.py::test_the_settings_of_a_plan_describe_it[Qwen/Qwen3-30B-A3B-16-settings1]",
    *(f"test_service_tools.py::test_the_settings_of_a_plan_describe_it_to_the_byte[{run}]" for run in ("experts", "fewest")),
    "test_plan_habits.py::test_tight_plans_that_are_better_than_the_first_stand_apart[memory]",
    "test_kimi_k3.py::test_plans_have_the_figures_of_estimate", "test_plan.py::test_the_fewest_gpus",
    "test_towers.py::test_plans_of_a_model_with_a_tower_have_the_figures_of_its_estimate[Qwen/Qwen3-VL-8B-Instruct]",
    *(f"test_advise.py::test_advice_in_the_docs_holds[command{at}]" for at in (1, 3, 4, 6, 7, 8)),
    "test_advise.py::test_where_nothing_fits_what_saves_most_is_first_and_no_answer_takes_more_gpus_than_it_must",
    "test_advise.py::test_the_order_of_tries_finds_what_an_exhaustive_search_of_pairs_finds",
    "test_advise.py::test_larger_moves_and_more_of_them_are_tried_where_pairs_do_not_suffice",
    "test_mcp_summary.py::test_a_plan_needs_a_number_of_gpus",
    "test_mcp_summary.py::test_sixteen_different_stages_are_small_enough[Qwen/Qwen3-Coder-480B-A35B-Instruct]",
    "test_plain_search.py::test_plans_that_are_nearly_as_good_stand_beside_those_of_their_idea",
    "test_plan.py::test_a_row_is_an_idea_and_what_is_nearly_as_good_is_counted_beside_it",
    *(f"test_plan.py::test_what_one_value_forbids_another_allows[words{at}]" for at in (1, 2, 3)),
    "test_plan_habits.py::test_tight_plans_that_are_better_than_the_first_stand_apart[throughput]",
    *(
        f"test_choices.py::test_a_choice_is_refused_as_estimate_refuses_it[{model}]"
        for model in ("zai-org/GLM-5", "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3.2", "google/gemma-3-27b-pt")
    ),
    "test_planner.py::test_arrays_of_jobs_give_the_bytes_of_each[deepseek-ai/DeepSeek-V4-Flash]",
    "test_deepseek_v4.py::test_a_plan_has_the_bytes_of_estimate",
    "test_help.py::test_every_example_runs[plan Qwen3-30B-A3B --num-gpus 16 --ep 8,16 --recompute full]",
    "test_help.py::test_every_example_runs[plan run.sh --num-gpus 16 --show 2 --launch yaml]",
    "test_traces.py::test_each_moment_has_the_bytes_of_the_timeline[layers in host memory]",
    "test_traces.py::test_each_moment_has_the_bytes_of_the_timeline[deferred weight gradients]",
    *(
        "test_plan_habits.py::test_recomputed_core_attention_is_not_tried_where_it_keeps_more_than_it_drops" + f"[{model}]"
        for model in ("Qwen/Qwen3-30B-A3B", "mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen3-8B")
    ),
    *(f"test_plan_habits.py::test_{name}" for name in (
        "the_allocator_and_the_dispatcher_of_published_recipes_are_taken_and_said", "a_search_offers_tight_plans_in_text_and_json",
        "short_answers_offer_them_too",
    )),
    "test_replay.py::test_cheap_rows_are_played_again", "test_notebook.py::test_the_cells_of_the_notebook_show_what_they_end_with",
    "test_advise.py::test_advice_in_the_docs_holds[advise openai/gpt-oss-20b --num-gpus 8 --seq-length 8192 --global-batch-size 512 "
    "--gpu H100 --top 5]",
    "test_advise.py::test_advice_in_the_docs_holds[command9]", "test_advise.py::test_where_nothing_helps_the_fewest_gpus_are_named",
    "test_advise.py::test_advice_is_what_estimate_says_of_the_changed_run[Qwen/Qwen3-30B-A3B-8-settings1]",
    *(f"test_advise.py::test_advice_in_a_narrow_terminal[{width}]" for width in (60, 100)),
    "test_mcp_summary.py::test_sixteen_different_stages_are_small_enough[meta-llama/Llama-3.1-405B]",
    "test_mcp_summary.py::test_the_settings_of_a_plan_describe_it[Qwen/Qwen3-8B-8-settings0]",
    "test_plan.py::test_a_whole_run_is_planned_anew", "test_plan.py::test_two_spellings_of_a_layout_are_one_plan",
    *(f"test_traces.py::test_each_moment_has_the_bytes_of_the_timeline[{name}]" for name in (
        "hyper-connections", "experts, output-discarding checkpoints", "dense", "graphs",
    )),
    *(f"test_docs.py::test_generated_blocks_are_current[{page}.md]" for page in (
        "accuracy", "tutorial", "timeline", "recompute", "recipes", "routing",
    )),
    "test_help.py::test_every_example_runs[plan Qwen/Qwen3-8B --gpu H100 --min-num-gpus --tp 1,2,4]",
    "test_random_jobs.py::test_random_legal_jobs_keep_every_property[1]",
    "test_choices.py::test_what_is_chosen_over_a_text_is_the_value_of_the_new_request[text0]",
    *(
        f"test_choices.py::test_a_choice_is_refused_as_estimate_refuses_it[{model}]"
        for model in (
            "Qwen/Qwen3-Next-80B-A3B-Instruct", "nvidia/NVIDIA-Nemotron-Nano-9B-v2", "zai-org/GLM-4.5", "google/gemma-4-E4B",
            "meta-llama/Llama-3.1-70B", "moonshotai/Kimi-K2-Instruct",
        )
    ),
    "test_site.py::test_the_package_of_a_site_runs_with_python_alone[False]",
    *(f"test_planner_routes.py::test_features_beyond_the_tables_have_the_bytes_of_estimate[{name}]" for name in (
        "optimizer of matrices", "fine_grained_activation_offloading", "defer_embedding_wgrad_compute", "peft",
    )),
    *(f"test_planner_space.py::test_launch_arguments_give_the_same_bytes[{model}]" for model in (
        "Qwen/Qwen3.5-35B-A3B", "Qwen/Qwen3-Next-80B-A3B-Instruct", "deepseek-ai/DeepSeek-V4-Flash", "zai-org/GLM-4.5-Air",
        "moonshotai/Kimi-K2-Instruct", "meta-llama/Llama-4-Scout-17B-16E-Instruct", "inclusionAI/Ling-flash-2.0", "zai-org/GLM-5",
        "mistralai/Mixtral-8x7B-v0.1", "moonshotai/Moonlight-16B-A3B", "Qwen/Qwen3-235B-A22B", "deepseek-ai/DeepSeek-V2-Lite",
    )),
    "test_plan.py::test_an_interrupt_prints_the_best_so_far", "test_service_tools.py::test_a_plan_tells_how_far_it_is",
    "test_service_tools.py::test_the_settings_of_a_plan_describe_it_to_the_byte[dense]",
    "test_service_tools.py::test_advice_is_applied_to_the_byte[/DeepSeek-V3]",
    "test_plain_search.py::test_a_large_space_is_refused_with_its_size",
    "test_legality.py::test_texts_have_the_numbers_of_their_rule_and_say_what_to_do",
    "test_dims.py::test_every_dim_that_a_legal_layout_declares_divides",
)  # fmt: skip
"""Ends of their names."""


APART = ("web", "trace", "install")
"""Folders of tests that only targets of their own run: they need programs and packages that others do not."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave them out where they are not named."""
    named = any(Path(arg.partition("::")[0]).resolve().is_relative_to(collection_path) for arg in config.args)
    apart = collection_path.parent == Path(__file__).parent and collection_path.name in APART
    return True if apart and not named else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the slow ones to the sweep; one that no longer exists is an error where whole folders are collected."""
    if SWEEP:
        return
    slow = [item for item in items if item.nodeid.endswith(SLOW)]
    if len(items) > 3000:
        gone = [name for name in SLOW if not any(item.nodeid.endswith(name) for item in slow)]
        assert not gone, gone
    items[:] = [item for item in items if item not in slow]
    config.hook.pytest_deselected(items=slow)
