package main

import resources "k8s.io/kubelet/pkg/apis/podresources/v1"

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
