// A device plugin for the tests of a real cluster: grants the device nodes of the fake NVIDIA driver as
// nvidia.com/gpu, as NVIDIA's own does, and registers again when the kubelet has made its socket anew.
//
//	device-plugin PLUGINS_FOLDER NODES_FOLDER UUID=NODE[,NODE...] ...
package main

import (
	"context"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	resource = "nvidia.com/gpu"
	socket   = "gpuwho-test.sock"
	// How often the kubelet's socket is looked at.
	interval = 200 * time.Millisecond
)

type plugin struct {
	api.UnimplementedDevicePluginServer
	// Where the nodes are on the host; in a container they are in /dev.
	folder  string
	devices []*api.Device
	nodes   map[string][]string
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	if err := stream.Send(&api.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		granted := &api.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(container.DevicesIds, ",")},
		}
		for _, id := range container.DevicesIds {
			for _, node := range p.nodes[id] {
				granted.Devices = append(granted.Devices, &api.DeviceSpec{
					HostPath: filepath.Join(p.folder, node), ContainerPath: "/dev/" + node, Permissions: "rw",
				})
			}
		}
		answer.ContainerResponses = append(answer.ContainerResponses, granted)
	}
	return answer, nil
}

func main() {
	if len(os.Args) < 4 {
		log.Fatal("usage: device-plugin PLUGINS_FOLDER NODES_FOLDER UUID=NODE[,NODE...] ...")
	}
	folder := os.Args[1]
	served := &plugin{folder: os.Args[2], nodes: map[string][]string{}}
	for _, device := range os.Args[3:] {
		id, nodes, found := strings.Cut(device, "=")
		if !found {
			log.Fatalf("%q is not UUID=NODE", device)
		}
		served.devices = append(served.devices, &api.Device{ID: id, Health: api.Healthy})
		served.nodes[id] = strings.Split(nodes, ",")
	}
	for {
		serve(folder, served)
	}
}

// serve serves until the kubelet that it registered with is gone: a new one empties the folder.
func serve(folder string, served *plugin) {
	path := filepath.Join(folder, socket)
	_ = os.Remove(path)
	listener, err := net.Listen("unix", path)
	if err != nil {
		log.Printf("%v", err)
		time.Sleep(interval)
		return
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, served)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	if err := register(filepath.Join(folder, "kubelet.sock")); err != nil {
		time.Sleep(interval)
		return
	}
	log.Printf("%d devices of %s are registered", len(served.devices), resource)
	for {
		if _, err := os.Stat(path); err != nil {
			return
		}
		time.Sleep(interval)
	}
}

func register(kubelet string) error {
	connection, err := grpc.NewClient("unix://"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = api.NewRegistrationClient(connection).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: socket, ResourceName: resource,
	})
	return err
}
