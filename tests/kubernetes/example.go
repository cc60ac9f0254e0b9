package main

import (
	"fmt"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	resources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const image = "registry.test/research/trainer:1.4"

// exampleResources has a container for each way to be granted a device, and one with nothing.
func exampleResources() *resources.ListPodResourcesResponse {
	topology := func(node int64) *resources.TopologyInfo {
		return &resources.TopologyInfo{Nodes: []*resources.NUMANode{{ID: node}}}
	}
	device := func(resource, id string) []*resources.ContainerDevices {
		return []*resources.ContainerDevices{{ResourceName: resource, DeviceIds: []string{id}}}
	}
	full := device("nvidia.com/gpu", "GPU-1")
	full[0].Topology = topology(1)
	half := "half"
	claim := &resources.ClaimResource{
		CdiDevices: []*resources.CDIDevice{{Name: "k8s.gpu.nvidia.com/claim=1-gpu-0"}},
		DriverName: "gpu.nvidia.com",
		PoolName:   "node-a",
		DeviceName: "gpu-0",
		ShareId:    &half,
	}
	claims := []*resources.DynamicResource{{
		ClaimName:      "gpu-claim",
		ClaimNamespace: "research",
		ClaimResources: []*resources.ClaimResource{claim},
	}}
	memory := []*resources.ContainerMemory{{MemoryType: "memory", Size: 1 << 30, Topology: topology(0)}}
	return &resources.ListPodResourcesResponse{PodResources: []*resources.PodResources{{
		Name:      "llm-0",
		Namespace: "research",
		Containers: []*resources.ContainerResources{
			{Name: "full", Devices: full, CpuIds: []int64{2, 3}, Memory: memory},
			{Name: "mig", Devices: device("nvidia.com/mig-1g.10gb", "MIG-1")},
			{Name: "shared", Devices: device("nvidia.com/gpu.shared", "GPU-1::3")},
			{Name: "claim", DynamicResources: claims},
			{Name: "nothing"},
		},
	}}}
}

// examplePod has a container of every kind.
func examplePod() *core.Pod {
	yes, always := true, core.ContainerRestartPolicyAlways
	gpus := core.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
	server := core.Container{Name: "server", Image: image, Resources: core.ResourceRequirements{Limits: gpus}}
	debugger := core.EphemeralContainerCommon{Name: "debugger", Image: image}
	status := func(name string, number int, restarts int32) core.ContainerStatus {
		return core.ContainerStatus{
			Name:         name,
			Ready:        true,
			RestartCount: restarts,
			Image:        image,
			ImageID:      fmt.Sprintf("registry.test/research/trainer@sha256:%064d", 1),
			ContainerID:  fmt.Sprintf("containerd://0%d", number),
		}
	}
	return &core.Pod{
		ObjectMeta: meta.ObjectMeta{
			Name:              "llm-7d9f-abcde",
			GenerateName:      "llm-7d9f-",
			Namespace:         "research",
			UID:               "7d2c7f6a-3b0e-4c3e-9a51-0d6b9f0f5a11",
			ResourceVersion:   "4711",
			Generation:        1,
			CreationTimestamp: meta.Unix(1_795_000_000, 0),
			Labels:            map[string]string{"app": "llm", "pod-template-hash": "7d9f"},
			Annotations:       map[string]string{"kubernetes.io/config.source": "api"},
			OwnerReferences: []meta.OwnerReference{{
				APIVersion: "apps/v1",
				Kind:       "ReplicaSet",
				Name:       "llm-7d9f",
				UID:        "aaaaaaaa-0000-4000-8000-000000000001",
				Controller: &yes,
			}},
		},
		Spec: core.PodSpec{
			NodeName:          "node-a",
			PriorityClassName: "high",
			Containers:        []core.Container{server},
			InitContainers: []core.Container{
				{Name: "fetch", Image: image},
				{Name: "proxy", Image: image, RestartPolicy: &always},
			},
			EphemeralContainers: []core.EphemeralContainer{{
				EphemeralContainerCommon: debugger,
				TargetContainerName:      "server",
			}},
		},
		Status: core.PodStatus{
			Phase:                      core.PodRunning,
			QOSClass:                   core.PodQOSBurstable,
			ContainerStatuses:          []core.ContainerStatus{status("server", 1, 2)},
			InitContainerStatuses:      []core.ContainerStatus{status("fetch", 2, 0), status("proxy", 3, 0)},
			EphemeralContainerStatuses: []core.ContainerStatus{status("debugger", 4, 0)},
		},
	}
}
