"""The recipes for schedulers are valid, agree with the product, and say nothing twice in two ways.

A manifest that is valid for its schema can still name a volume that is not there.
"""

import configparser
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click import UsageError

from ftcomm.errors import FencedError, JobFinishedError
from ftcomm_tracker.launcher.launcher import LaunchOptions
from ftcomm_tracker.launcher.restart_policy import FINAL

EXAMPLES = Path(__file__).parents[2] / "examples"
MANIFEST = EXAMPLES / "kubernetes" / "job1.yaml"
UNIT = EXAMPLES / "systemd" / "job1@.service"
BATCH = EXAMPLES / "slurm" / "job1.sbatch"

NEVER_AGAIN = FINAL | {UsageError.exit_code}
# A pod that comes back finds its job finished, or its place taken: no failed job.
OWN_END = {FencedError.exit_code, JobFinishedError.exit_code}
GRACE_S = LaunchOptions.__dataclass_fields__["grace_s"].default
OLDEST = "1.29"  # the first whose servers take backoffLimitPerIndex unasked


def manifest() -> dict[str, Any]:
    documents = list(yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8")))
    by_kind = {document["kind"]: document for document in documents}
    assert len(by_kind) == len(documents)
    return by_kind


def job() -> Any:
    return manifest()["Job"]["spec"]


def pods() -> list[Any]:
    """The pods of the tracker and of the workers."""
    return [manifest()[kind]["spec"]["template"]["spec"] for kind in ("StatefulSet", "Job")]


@pytest.mark.parametrize("version", [OLDEST, None], ids=["oldest", "newest"])
def test_the_manifest_is_valid_for_the_api(version: str | None) -> None:
    api = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")
    version = version or api.latest_version()
    for document in manifest().values():
        assert version.startswith(api.validate(document, version, strict=True))


def test_a_field_that_the_api_does_not_have_is_noticed() -> None:
    api = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")
    wrong = manifest()["Job"]
    wrong["spec"]["backoffLimitPerWorker"] = 1
    with pytest.raises(api.ValidationError):
        api.validate(wrong, OLDEST, strict=True)


def test_a_pod_that_is_taken_away_is_no_failure() -> None:
    """The first rule that fits counts, and a pod that ends by SIGTERM has an exit status too."""
    ignored, failed = job()["podFailurePolicy"]["rules"]
    condition = {"type": "DisruptionTarget", "status": "True"}
    assert ignored == {"action": "Ignore", "onPodConditions": [condition]}
    assert failed["action"] == "FailJob"
    values = failed["onExitCodes"]["values"]
    assert failed["onExitCodes"]["operator"] == "In"
    assert values == sorted(NEVER_AGAIN - OWN_END)  # the API wants them sorted


def test_pods_fail_one_by_one() -> None:
    """Both fields need an indexed Job whose pods are not restarted in place."""
    spec = job()
    assert (spec["completionMode"], pods()[1]["restartPolicy"]) == ("Indexed", "Never")
    assert spec["backoffLimitPerIndex"] > 0
    assert "backoffLimit" not in spec


def test_workers_have_the_time_to_save() -> None:
    assert pods()[1]["terminationGracePeriodSeconds"] > GRACE_S
    assert int(unit()["TimeoutStopSec"]) > GRACE_S


def test_the_manifest_agrees_with_itself() -> None:
    objects = manifest()
    service, stateful, spec = (objects[kind] for kind in ("Service", "StatefulSet", "Job"))
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert stateful["spec"]["selector"]["matchLabels"] == labels
    assert stateful["spec"]["serviceName"] == service["metadata"]["name"]
    assert (stateful["spec"]["replicas"], service["spec"]["clusterIP"]) == (1, "None")
    (tracker,), (worker,) = (pod["containers"] for pod in pods())
    words = tracker["command"] + tracker["args"]
    options = dict(zip(words[2::2], words[3::2], strict=True))
    sizes = {int(options["-n"]), spec["spec"]["completions"], spec["spec"]["parallelism"]}
    assert len(sizes) == 1
    variables = {each["name"]: each["value"] for each in worker["env"]}
    (port,) = service["spec"]["ports"]
    assert variables["FTCOMM_TRACKER"] == f"{service['metadata']['name']}:{port['port']}"
    assert options["--port"] == str(port["port"])
    assert options["--token-file"] == variables["FTCOMM_TOKEN_FILE"]
    claims = [claim["metadata"]["name"] for claim in stateful["spec"]["volumeClaimTemplates"]]
    for pod, more in zip(pods(), (claims, []), strict=True):
        has = {volume["name"] for volume in pod["volumes"]} | set(more)
        containers = [*pod["initContainers"], *pod["containers"]]
        mounted = {mount["name"] for each in containers for mount in each["volumeMounts"]}
        assert mounted == has
        (secret,) = [each["secret"] for each in pod["volumes"] if "secret" in each]
        assert secret["secretName"] == objects["Secret"]["metadata"]["name"]


def unit() -> configparser.SectionProxy:
    parser = configparser.RawConfigParser()
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # as its documents say
    parser.read(UNIT, encoding="utf-8")
    return parser["Service"]


def test_the_unit_leaves_what_is_never_started_again() -> None:
    assert set(map(int, unit()["RestartPreventExitStatus"].split())) == NEVER_AGAIN
    assert (unit()["Restart"], unit()["KillMode"]) == ("on-failure", "mixed")


def test_the_batch_script_is_bash_and_dials_no_address_of_its_own_node() -> None:
    text = BATCH.read_text(encoding="utf-8")
    done = subprocess.run(["bash", "-n", str(BATCH)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "hostname -i" not in text
    assert "--kill-on-bad-exit=0" in text
