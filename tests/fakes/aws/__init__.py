"""A fake AWS: moto's server in a thread, with an overlay for what moto lacks or takes too easily.

    with FakeKubernetes() as kubernetes, FakeAws("us-east-2", kubernetes) as aws:
        for name, value in aws.environ().items():
            monkeypatch.setenv(name, value)        # boto3, and the stand-ins `eksctl` and `helm` first in PATH

One at a time in a process: moto's state is global, and is cleared on entry. `kubernetes` is the one EKS cluster's API:
nodes join it and leave it, and it is emptied when the cluster is deleted; without it there are only machines.

Time: `FakeAws(time_scale=0.001)` takes half a second for what takes AWS eight minutes. Time stamps are true ones.
`aws.clock.scale = 0.01`, at any time, leaves time for an interrupt. States change by themselves, whoever watches: EKS
CREATING → ACTIVE → DELETING, stacks resource by resource with their events.

What a test sets, at any time:

| | |
|---|---|
| `aws.faults.credentials = "expired"` / `"invalid"` | every call is refused, in each service's words |
| `aws.faults.arn` | who the caller is, and so the account ("arn:aws:sts::…:assumed-role/x/y" for a role) |
| `aws.faults.callers["AKIAOTHER"] = "arn:…"` | who another access key is; AssumeRole adds such |
| `aws.faults.denied.add("eks:CreateCluster")` | AccessDenied for an action, or "ec2:*"; in the policy simulation too |
| `aws.faults.throttled["ec2:DescribeSubnets"] = 2` | the next two calls; "*" for any action |
| `aws.faults.broken["eks:DescribeCluster"] = 1` | error 500 |
| `aws.faults.page_size = 1` | pages of one in all that the overlay answers (EKS, stacks, quotas, prices, tags, …) |
| `aws.clock_skew_s = 600` | the `Date` of every answer |
| `aws.machines.left["g6.8xlarge", "us-east-2a"] = 0` | no capacity; n: for n more instances (T2) |
| `aws.ec2.offerings["g6.8xlarge"] = {"us-east-2b"}` | zones that offer a type (else moto's data) |
| `aws.ec2.reserve("g6.8xlarge", "us-east-2a", 2, block=False)` | a capacity reservation, or a capacity block; its id |
| `aws.ec2.reservation_groups["arn:…"] = ["cr-…"]` | resource groups of reservations |
| `aws.ec2.block_offerings`, `aws.ec2.placement_groups` | as the Describe operations give them |
| `aws.quotas.values["L-DB2E81BA"] = 0`, `aws.quotas.requested` | vCPU quotas, which launches meet too; requests made |
| `aws.prices.instances["g6.8xlarge"] = 2.5`, `.available = False` | the price list (not the product's own figures) |
| `aws.eks.today` | the day that versions' support is judged by |
| `aws.eks.dangling.add("group")` | when that node group goes, an interface stays: the cluster's stack can't go (I1) |
| `aws.eks.stuck.add("group")` | that cluster's or group's deletion never ends |
| `aws.nodes.advertised["p6-b200.48xlarge"] = {"vpc.amazonaws.com/efa": 10}` | what a device plugin says (B12) |
| `aws.nodes.broken_plugins.add("vpc.amazonaws.com/efa")` | a plugin that runs and advertises nothing |
| `aws.tags.late = True` | the tagging API does not list EKS's resources yet |

What a test reads: `aws.calls` and `aws.called("eks:CreateCluster")` (with `.parameters`), `aws.unknown` (what nobody
could answer), `aws.client("ec2")` (boto3 that no fault meets), `aws.stacks.all`, `aws.eks.clusters`,
`aws.machines.groups`.

`aws.recipes.start_cluster(config)` and `.start_nodegroup(config, group)` begin the stacks that eksctl would of a
ClusterConfig; `aws.stacks.find(name).status` tells how far they are.

The stand-ins are separate processes that find this by FAKE_AWS and FAKE_TIME_SCALE, and the cluster's API by its
kubeconfig (helm) or by DescribeCluster (eksctl). See `fakes.programs.eksctl` and `fakes.programs.helm` for what they
do and don't; helm is 4.1.4, or what FAKE_HELM_VERSION says.

By module: `wire` protocols, `server` the overlay's way in, `faults`, `account` (STS, IAM, quotas, prices), `ec2`,
`machines` (Auto Scaling), `nodes` (Kubernetes' side), `eks`, `nodegroups`, `addons`, `stacks` and `templates`
(CloudFormation), `recipes` and `vpc` (what eksctl's stacks hold), `tags`, `control` (what the stand-ins ask). Each
says what is not there; beyond that: EKS's own interfaces for the control plane, load balancers that a controller would
make, policies, and everything in regions other than the one given.
"""

from fakes.aws.server import ACCESS_KEY, FakeAws

__all__ = ["ACCESS_KEY", "FakeAws"]
