"""What happens in the cluster behind the API.

| module | what it is |
|---|---|
| `kuberay` | `KubeRay`, which runs all of it, and the operator as Helm installs it |
| `script` | what a test says is to happen |
| `scheduling` | where pods go |
| `kubelet`, `pod_life`, `pod_status` | what becomes of them there |
| `controllers` | pods of Deployments, endpoints of Services |
| `rayservices`, `rayservice_spec`, `applications`, `rayclusters` | the operator, and Serve as it sees it |
| `recorder` | how all of them write status and events |
"""
