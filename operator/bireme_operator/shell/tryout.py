"""What the server says to pods as they are wanted, before any is made. Asked once for each revision and placement."""

from dataclasses import dataclass, field

from bireme.api import InferenceDeployment
from bireme_operator.kube.errors import Refused
from bireme_operator.plan.actions import CreatePod
from bireme_operator.plan.desired import Desired
from bireme_operator.render.errors import InvalidTemplate
from bireme_operator.shell.gangs import Gangs
from bireme_operator.shell.pod_groups import NoGangs
from bireme_operator.shell.pods import PodWriter


@dataclass
class TryOut:
    """Of one deployment."""

    pods: PodWriter
    gangs: Gangs
    _said: dict[str, str] = field(default_factory=dict)

    async def refusal(self, deployment: InferenceDeployment, desired: Desired, token_secret: str) -> str:
        """Return why the server takes no such pods, or nothing. For want of gangs something else may be wanted now."""
        asked = f"{desired.revision} {deployment.spec.placement.model_dump_json()}"
        if asked not in self._said:
            try:
                await self.pods.try_out(probe(desired), deployment.spec, token_secret)
                self._said[asked] = ""
            except NoGangs as error:
                # Who can do nothing about it looks for them again each time.
                self.gangs.missing = str(error) if self.pods.sees_nodes else ""
                return str(error)
            except (Refused, InvalidTemplate) as error:
                self._said[asked] = str(error)
        return self._said[asked]

    def ask_again(self) -> None:
        """Ask once more about what was refused."""
        self._said = {asked: refusal for asked, refusal in self._said.items() if not refusal}

    def ask_all_again(self) -> None:
        """Ask about everything: what was taken at a try has been refused since."""
        self._said.clear()


def probe(desired: Desired) -> CreatePod:
    """A pod that is never made, to be asked about."""
    identity, name = desired.pod_environment(0, 0, 0), desired.pod_name(0, 0, 0)
    return CreatePod(name, 0, 0, 0, desired.revision, desired.model_revision, identity, desired.image)
