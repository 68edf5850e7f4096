"""The command line: its flags are a decision, its errors are one line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner

import ramiform
from ramiform import RamiformError, RequestError
from ramiform.cli import app
from ramiform.flags import PANELS, _with_our_values
from ramiform.runtime.processes.launch import make_config
from ramiform.runtime.protocol import setting_aliases as peer_names
from ramiform.runtime.protocol.config import CoreConfig, ServeConfig

ROOT = Path(__file__).parents[1]
RAMIFORM = str(Path(sys.executable).parent / "ramiform")

MODEL_FLAGS = {
    "--order",
    "--eviction",
    "--host-kv-memory",
    "--disk-cache",
    "--disk-memory",
    "--log-plans",
    "--kv-events",
    "--kv-events-format",
    "--kv-events-topic",
    "--role",
    "--transfer-bind",
    "--prefill-workers",
    "--transfer-keys",
    "--transfer",
    "--remote-prefill-tokens",
    "--served-model-name",
    "--lora",
    "--max-loras",
    "--max-lora-rank",
    "--device",
    "--cpu-threads",
    "--kernels",
    "--cuda-graphs",
    "--overlap",
    "--deterministic",
    "--enable-return-routed-experts",
    "--dtype",
    "--model-impl",
    "--tp",
    "--ep",
    "--pp",
    "--nnodes",
    "--node-rank",
    "--master",
    "--node-keys",
    "--quantize",
    "--context-length",
    "--num-pages",
    "--kv-memory",
    "--mem-fraction",
    "--state-slots",
    "--window-ratio",
    "--streaming-window",
    "--streaming-sinks",
    "--grammar-memory",
    "--kv-dtype",
    "--kv-scales",
    "--prefill-budget",
    "--max-running",
    "--max-waiting",
    "--picture-bytes",
    "--prefix-cache",
    "--jump-forward",
    "--wait-for-loops",
    "--speculative",
    "--speculative-draft-model",
    "--speculative-exit-layer",
    "--speculative-num-steps",
    "--speculative-eagle-topk",
    "--speculative-num-draft-tokens",
    "--speculative-adaptive",
    "--grammar-backend",
    "--additional-properties",
    "--number-digits",
    "--json-whitespace",
}
HTTP_FLAGS = {
    "--limit-mm-per-prompt",
    "--max-image-bytes",
    "--max-image-pixels",
    "--allow-image-hosts",
    "--batch-dir",
    "--cache-scope",
    "--cors-origins",
    "--max-body-mib",
    "--max-requests-per-key",
    "--requests-per-minute-per-key",
    "--request-timeout",
    "--max-connections",
    "--max-connections-per-address",
    "--admin-key",
    "--tool-call-parser",
    "--tool-calls",
    "--reasoning-parser",
    "--reranker",
    "--trust-request-chat-template",
    "--uds",
    "--ssl-certfile",
    "--ssl-keyfile",
    "--engine",
    "--frontends",
    "--drain-seconds",
    "--log-requests",
    "--otlp-endpoint",
    "--page",
    "--page-texts",
}
LOG_FLAGS = {"--log-level", "--log-format"}
FLAGS = {
    "serve": MODEL_FLAGS | {"--host", "--port", "--open", "--api-key", "--bind", "--keys"} | LOG_FLAGS | HTTP_FLAGS,
    "cluster": MODEL_FLAGS | {"--replicas", "--prefill", "--port", "--keep-going", "--install"} | LOG_FLAGS,
    "run": MODEL_FLAGS | {"--model", "--address", "--keys"} | LOG_FLAGS,
    "eval": MODEL_FLAGS
    | {"--model", "--address", "--keys", "--data", "--limit", "--concurrency", "--resume", "--against"}
    | {"--save", "--html", "--csv"}
    | LOG_FLAGS,
    "trace": MODEL_FLAGS | {"--model", "--address", "--keys", "--save", "--html", "--summary"} | LOG_FLAGS,
    "chat": MODEL_FLAGS | {"--url", "--name", "--api-key", "--system"} | LOG_FLAGS,
    "batch": MODEL_FLAGS | {"--model", "--out", "--url", "--api-key"} | LOG_FLAGS,
    "info": MODEL_FLAGS | {"--address", "--keys"} | LOG_FLAGS,
    "keys": {"--name"},
    "check-grammar": set(),
    "grammar check": {
        *("--against", "--kind", "--additional-properties", "--whitespace", "--order", "--number-digits", "--json")
    },
    "calibrate-kv": {"--data", "--out", "--window", "--device", "--dtype"},
    "check-logprobs": {"--dtype", "--trainer", "--deterministic", "--num-tokens", "--seed"},
    "quantize": {"--method", "--out", "--data", "--calibration", "--window", "--act-order", "--smooth-strength"},
    "plan": {
        "--gpus",
        "--prompt",
        "--cached",
        "--context",
        "--concurrency",
        "--ttft",
        "--itl",
        "--price",
        "--efficiency",
        "--kv-dtype",
        "--limit",
    },
    "train-draft": {
        "--data",
        "--held-out",
        "--out",
        "--eagle",
        "--medusa",
        "--init",
        "--generate",
        "--temperature",
        "--steps",
        "--tokens-per-step",
        "--max-length",
        "--optimizer",
        "--learning-rate",
        "--ahead",
        "--token-loss",
        "--draft-vocab",
        "--device",
        "--dtype",
        "--threads",
        "--seed",
    },
    "bench serve": {
        "--compare",
        "--concurrency",
        "--rate",
        "--burstiness",
        "--arrivals",
        "--requests",
        "--rounds",
        "--warmup",
        "--prompt-tokens",
        "--output-tokens",
        "--prompts",
        "--prefix-tokens",
        "--prefix-groups",
        "--structured",
        "--route",
        "--ignore-eos",
        "--model",
        "--api-key",
        "--slo",
        "--timeout",
        "--seed",
        "--out",
        "--plot",
    },
    "bench replay": {
        "--order",
        "--eviction",
        "--num-pages",
        "--prefill-budget",
        "--max-running",
        "--prefix-cache",
    },
}


def commands() -> dict[str, Any]:
    """Every command by its name, those of groups too."""
    found: dict[str, Any] = {}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found |= {name: command} if inner is None else {f"{name} {sub}": each for sub, each in inner.items()}
    return found


def test_a_new_flag_is_a_decision() -> None:
    flags = {
        name: {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
        for name, command in commands().items()
    }
    assert flags == FLAGS


def test_every_flag_says_what_it_means() -> None:
    for command in commands().values():
        for parameter in command.params:
            assert parameter.help, f"{command.name} {parameter.name}"


SHORT = ("run", "trace", "eval", "batch", "chat", "info", "cluster")


def help_of(*arguments: str) -> str:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "80"}).stdout


@pytest.mark.slow
def test_settings_are_shown_in_groups() -> None:
    shown = help_of("serve", "--help")
    for group in PANELS:
        assert f"\n{group}:\n" in shown
    for name in ("serve", "run", "trace", "eval", "chat", "info"):
        for parameter in commands()[name].params:
            if parameter.name in (*CoreConfig.__struct_fields__, *ServeConfig.__struct_fields__):
                assert parameter.rich_help_panel is not None or parameter.name in ("model", "api_key", "keys"), (
                    parameter.name
                )


def test_training_says_what_models_it_takes_and_where_the_head_of_a_file_goes() -> None:
    shown = " ".join(help_of("train-draft", "--help").split())
    assert "Folder, GGUF file, or ORG/NAME of the hub" in shown
    assert "MODEL/draft or FILE-draft" in shown


@pytest.mark.parametrize("name", SHORT)
def test_help_is_a_screen_and_the_settings_of_the_runtime_are_asked_for(name: str) -> None:
    short, whole = help_of(name, "--help"), help_of(name, "--help-all")
    assert short.count("\n") <= 40
    assert "--help-all" in short
    assert "--kv-dtype" not in short
    assert set(whole.splitlines()) >= {"Scheduling:", "Memory and reuse:"}


@pytest.mark.parametrize("name", sorted(FLAGS))
def test_names_of_flags_are_shown_whole(name: str) -> None:
    shown = set(re.split(r"[\s/]+", help_of(*name.split(), "--help-all" if name in SHORT else "--help")))
    hidden = {flag for p in commands()[name].params if p.hidden for flag in p.opts}
    assert shown >= FLAGS[name] - hidden


def test_the_version_is_the_same_everywhere() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout.strip() == version("ramiform") == ramiform.__version__


@pytest.mark.exhaustive
def test_info_shows_the_model_and_the_cache(tmp_path: Path) -> None:
    command = [RAMIFORM, "info", "--num-pages", "64", "--disk-cache", str(tmp_path / "kv")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    for fact in ("LlamaForCausalLM", "num_free_pages", "float32", "context_length", "kv_bytes_per_token"):
        assert fact in done.stdout
    sizes = {line.split()[1]: line.split()[3] for line in done.stdout.splitlines() if "disk_" in line}
    assert sizes["disk_max_bytes"] == f"{16 << 30:,}"
    assert sizes["disk_is_writer"] == "True"


@pytest.mark.exhaustive
def test_info_says_how_many_tokens_each_format_of_keys_and_values_holds() -> None:
    """The model that ships has 6 layers with 2 key heads of 64 numbers. Judge: the formats' bytes."""
    sizes = {"fp32": 256, "bf16": 128, "fp16": 128, "int8": 66, "fp8": 66, "fp8_e5m2": 64, "int4": 34}
    memory, tokens = 0.012, {}
    for kv_dtype, head in sizes.items():
        command = [RAMIFORM, "info", "--kv-memory", str(memory), "--kv-dtype", kv_dtype]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        facts = {line.split()[1]: line.split()[3] for line in done.stdout.splitlines() if line.count("│") == 3}
        assert (facts["kv_dtype"], facts["context_length"]) == (kv_dtype, "2,048")
        assert facts["kv_bytes_per_token"] == f"{6 * 2 * 2 * head:,}"
        tokens[kv_dtype] = int(facts["num_slots"].replace(",", ""))
        assert tokens[kv_dtype] == int(memory * 2**30) // (6 * 2 * 2 * head) // 16 * 16
    assert tokens["int4"] >= 1.88 * tokens["int8"]


@pytest.mark.exhaustive
def test_run_gives_the_script_its_arguments_and_its_folder(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("PROMPT = 'Question: What is the capital of France?\\nAnswer:'\n")
    (tmp_path / "script.py").write_text(
        "import sys, ramiform\nfrom helper import PROMPT\n"
        "@ramiform.function\n"
        "def ask(s):\n    s += PROMPT + ramiform.gen('answer', max_tokens=4, temperature=0)\n"
        "print(sys.argv[1:], type(ask.run()['answer']).__name__)\n"
    )
    done = subprocess.run(
        [RAMIFORM, "run", str(tmp_path / "script.py"), "--verbose", "7"], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "['--verbose', '7'] str\n", done.stderr


@pytest.mark.exhaustive
def test_trace_runs_a_script_and_shows_a_saved_trace(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import ramiform\n"
        "@ramiform.function\n"
        "def ask(s, country):\n"
        "    s += country\n"
        "    branches = s.fork(2)\n"
        "    branches += ramiform.gen('city', stop='.')\n"
        "    branches.join()\n"
        "ask.run('France', backend=ramiform.Scripted([' Paris.', ' Lyon.']))\n"
        "ask.run('Peru', backend=ramiform.Scripted([' Lima.', ' Cusco.']))\n"
    )
    command = [RAMIFORM, "trace", str(tmp_path / "script.py"), "--address", "ipc:///unused", "--save", "t.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for fact in ("ask: 3 states", "branch 1", "' Paris'", "' Cusco'", "script.py:6"):
        assert fact in done.stdout
    again = subprocess.run([RAMIFORM, "trace", "t.json"], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert again.stdout == done.stdout
    command = [RAMIFORM, "trace", "t.json", "--summary"]
    summary = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert summary.stdout.startswith(done.stdout.splitlines()[0])
    assert "s += country" in summary.stdout
    assert summary.stdout.count("model s") == 2
    (tmp_path / "script.py").unlink()  # the saved file has the texts of its lines
    command = [RAMIFORM, "trace", "t.json", "--html", "t.html"]
    page = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert page.stdout == done.stdout
    found = re.search(
        r'<script type="application/json" id="programs">(.*?)</script>', (tmp_path / "t.html").read_text()
    )
    assert found is not None
    france, peru = json.loads(found[1])
    assert (france["title"], peru["states"][2]["events"][0]["text"]) == ("ask", " Cusco")
    assert france["source"][str(tmp_path / "script.py:4")] == "s += country"


@pytest.mark.slow
def test_what_is_no_trace_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[]")
    done = subprocess.run([RAMIFORM, "trace", "x.json"], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "x.json" in done.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (["--num-pages", "1"], "num_pages"),
        (["--context-length", "999999"], "context_length"),
        (["--device", "cuda:77"], "cuda:77"),
        (["--kv-memory", "0.001"], "kv_memory"),
        (["--kv-memory", "1000000"], "kv_memory"),
        (["--num-pages", "100000000000"], "num_pages"),
        (["--kv-scales", "scales.json"], "kv_scales are for kv_dtype fp8, int8 and int4"),
        (["--kv-dtype", "int8", "--kv-scales", "no-such-file"], "no-such-file"),
    ],
)
def test_a_bad_setting_is_one_line(setting: list[str], message: str) -> None:
    done = subprocess.run([RAMIFORM, "info", *setting], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert message in line


@pytest.mark.parametrize(
    ("arguments", "ours"),
    [
        (["serve", "--tensor-parallel-size=2"], "--tp"),
        (["serve", "--disable-radix-cache"], "--no-prefix-cache"),
        (["serve", "--model-path", "x"], "the argument MODEL"),
        (["serve", "--model", "x"], "the argument MODEL"),
        (["info", "--max-model-len", "7"], "--context-length"),
    ],
    ids=lambda value: value[1] if isinstance(value, list) else None,
)
def test_a_flag_of_vllm_or_sglang_is_answered_with_ours(arguments: list[str], ours: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, RequestError)
    assert str(result.exception).startswith(f"no such option: {arguments[1].partition('=')[0]}; here it is")
    assert ours in str(result.exception)


@pytest.mark.parametrize(
    ("setting", "theirs", "ours"),
    [
        ("tool_call_parser", "qwen25", "hermes"),
        ("reasoning_parser", "deepseek_r1", "think"),
        ("speculative", "NEXTN", "mtp"),
        ("speculative", "deepseek_mtp", "mtp"),
    ],
)
def test_a_value_s_name_at_vllm_or_sglang_means_ours(setting: str, theirs: str, ours: str) -> None:
    flag = "--" + setting.replace("_", "-")
    assert _with_our_values(["serve", flag, theirs, "x"]) == ["serve", flag, ours, "x"]
    assert _with_our_values([f"{flag}={theirs}", theirs]) == [f"{flag}={ours}", theirs]
    config = make_config(None, {setting: theirs})
    Path(config.serve.socket_dir).rmdir()
    assert getattr(config.core if hasattr(config.core, setting) else config.serve, setting) == ours


def test_every_value_of_others_is_one_of_ours() -> None:
    for setting, values in peer_names._VALUES.items():
        for theirs, ours in values.items():
            own = CoreConfig if setting in CoreConfig.__struct_fields__ else ServeConfig
            msgspec.convert({"socket_dir": "", setting: ours}, own)
            with pytest.raises(msgspec.ValidationError):
                msgspec.convert({"socket_dir": "", setting: theirs}, own)


def test_what_others_call_a_setting_is_a_setting_of_ours() -> None:
    ours = {*CoreConfig.__struct_fields__, *ServeConfig.__struct_fields__}
    assert set(peer_names._ALIASES.values()) <= ours
    assert not set(peer_names._ALIASES) & ours


def test_the_table_of_flags_names_every_setting_of_others_beside_ours() -> None:
    """docs/operate/migrate.md against the names that the command line translates."""
    page = (ROOT / "docs/operate/migrate.md").read_text()
    table = [line.split("|") for line in page.splitlines() if line.startswith("| ")]
    flags = [[set(re.findall(r"--([a-z][a-z-]+)", cell)) for cell in row[1:-1]] for row in table]
    ours = {name.replace("_", "-") for name in (*CoreConfig.__struct_fields__, *ServeConfig.__struct_fields__)}
    assert {flag.removeprefix("no-") for row in flags for flag in row[-1]} <= ours
    for theirs, setting in peer_names._ALIASES.items():
        if setting != "model":
            rows = [row for row in flags if theirs.replace("_", "-") in set.union(*row[:-1])]
            assert rows, theirs
            assert all({setting.replace("_", "-"), f"no-{setting.replace('_', '-')}"} & row[-1] for row in rows), theirs


@pytest.mark.parametrize(
    ("name", "message"),
    [("tp_size", "here it is 'tp'"), ("num_page", "here it is 'num_pages'"), ("zebra", "the settings are")],
)
def test_an_unknown_setting_names_the_one_that_was_meant(name: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as raised:
        make_config(None, {name: 2})
    assert raised.value.param == name


def test_model_path_is_the_model() -> None:
    with pytest.raises(RamiformError, match=r"no model at '/nowhere'"):
        ramiform.Runtime(model_path="/nowhere")
    with pytest.raises(RequestError, match="two names"):
        ramiform.Runtime("/nowhere", model_path="/nowhere")


@pytest.mark.parametrize("name", ["api_key", "admin_key"])
@pytest.mark.parametrize("key", ["", " ", ",", " , "])
def test_an_empty_key_is_refused_rather_than_everybody_served(name: str, key: str) -> None:
    with pytest.raises(RequestError, match=f"{name} is empty"):
        make_config(None, {name: key})


def test_a_folder_that_cannot_hold_keys_is_one_line() -> None:
    result = CliRunner().invoke(app, ["keys", "/proc/nowhere"])
    assert isinstance(result.exception, RequestError)
    assert "/proc/nowhere" in str(result.exception)


def test_a_slip_in_a_script_is_told_before_a_runtime_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*args: Any, **settings: Any) -> None:
        raise AssertionError("a runtime was started")

    monkeypatch.setattr("ramiform.runtime.processes.launch.Runtime", start)
    script = tmp_path / "script.py"
    script.write_text("print('unended)\n")
    assert isinstance(CliRunner().invoke(app, ["run", str(script)]).exception, SyntaxError)
