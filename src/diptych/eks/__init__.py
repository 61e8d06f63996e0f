"""An EKS cluster of one's own: the account, the cluster, its nodes, over what `diptych.kube` does in a cluster.

| module | knows |
|---|---|
| `aws`, `refusals`, `sso` | credentials and endpoints as the AWS CLI finds them; AWS's errors in words |
| `account`: `permissions`, `quotas`, `reservations`, `network`, `registries` | what the account has and allows |
| `prices`, `price_list`, `plan`, `present`, `going` | what will be made or taken away, and its price per hour |
| `kubeconfig`, `token`, `connection` | the way into the cluster, in a file of its own, without the AWS CLI |
| `kubeconfig_file` | a kubeconfig of the user's as YAML, its words kept |
| `job`, `up`, `down`, `status`, `costs` | the steps in their order, what each is like, what it has cost |
| `cluster`, `vpc`, `efa`, `address` | the step `cluster`: control plane, network, security group for EFA |
| `nodes`, `groups`, `group_differences`, `capacity`, `draining` | the step `nodes`: GPU nodes in one zone |
| `plugins`, `plugins_of_others` | device plugins: had where they lack, and gone again from a cluster of others |
| `eksctl`, `stacks` | the program that makes stacks, and what CloudFormation tells of them |
| `ownership`, `inventory`, `leftovers`, `workloads` | whose it is, what is there, what is left, what is not ours |
"""
