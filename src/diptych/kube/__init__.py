"""A service on a Kubernetes cluster that exists: operator and service, up, watched and down. Knows nothing of AWS.

| module | holds |
|---|---|
| `up`, `down` | the steps in their order, and backwards |
| `job` | `Job`: what every step is given; `StepStatus`: what it tells of itself |
| `operator` | the step `operator`: KubeRay, ours or somebody else's |
| `operators`, `release` | the operators that are there; our Helm release, and KubeRay's CRDs |
| `service` | the step `service`: applied, watched until it is ready, proven |
| `changes` | what applying would do: in place, a restart, or a second cluster's GPUs |
| `secrets`, `given` | the endpoint's keys and the hub's token, in the cluster; those that the document names |
| `access` | whether pods may read the model, asked from inside one |
| `proof` | the first prompts of a service |
| `removal` | the end of a service, finalizers included |
| `ours` | what is Diptych's in a cluster, and what is not; namespaces |
| `snapshot`, `objects` | all objects of a service at one time; reading them |
| `blockers`, `blocker` | the first thing that keeps a service from being ready, in words |
| `scheduling`, `images`, `containers`, `loading`, `failures` | what a pod waits for or died of |
| `applications`, `deletion` | what Serve's applications wait for; what does not go |
| `status`, `nodes`, `facts` | how a service is, by step and phase; GPUs and EFA by node; what `check` is told |
| `logs`, `ray_logs` | what pods and engines wrote |
| `forward`, `tunnel`, `endpoint` | a way to the service from here |
| `pods` | pods that are no part of a Ray cluster |
| `connection` | `Cluster`: reading and writing objects, plainly |
| `requests`, `refusals` | requests to the API server, repeated where that is safe; why it refuses, in words |
| `kubeconfig`, `identity`, `kinds` | which cluster is meant, and whether it is that of `up`; addresses of objects |
| `programs`, `child` | helm and eksctl: found, run, ended |
| `waiting` | waits with a deadline that name what blocks |
| `remembered` | names that commands remember |
| `versions` | versions as numbers |
"""
