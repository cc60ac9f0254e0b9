// Writes messages of Kubernetes' local APIs with Kubernetes' own Go types: what the agent's
// messages (`agent/crates/kubernetes`) are tested against. Every field of every message is set, also those that
// the agent does not read, and every message has fields that nobody knows yet.
//
//	cd tests/kubernetes && go run . ../fixtures/kubernetes
//
// A string is its message and field ("Container.id"), a number its field's number and 1000, true is
// true. A list has one such item, and one in which nothing is set. What begins with "fake-" is what
// the fake kubelet of the tests must write (example.go).
package main

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	resources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: go run . FOLDER")
	}
	answers := map[string]proto.Message{
		"fake-pod-resources": exampleResources(),
		"cri-version":        filled(&cri.VersionResponse{}),
		"cri-sandboxes":      filled(&cri.ListPodSandboxResponse{}),
		"cri-containers":     filled(&cri.ListContainersResponse{}),
		"cri-images":         filled(&cri.ListImagesResponse{}),
		"cri-event":          filled(&cri.ContainerEventResponse{}),
		"pod-resources-list": filled(&resources.ListPodResourcesResponse{}),
		"pod-resources-get":  filled(&resources.GetPodResourcesResponse{}),
		"pod-resources-all":  filled(&resources.AllocatableResourcesResponse{}),
		"cri-ask-version":    &cri.VersionRequest{Version: "v1"},
		"cri-ask-sandbox":    &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{Id: "s1", LabelSelector: map[string]string{"io.kubernetes.pod.uid": "u1"}}},
		"cri-ask-container":  &cri.ListContainersRequest{Filter: &cri.ContainerFilter{Id: "c1"}},
		"pod-resources-ask":  &resources.GetPodResourcesRequest{PodName: "trainer-0", PodNamespace: "research"},
	}
	for name, answer := range answers {
		bytes, err := proto.MarshalOptions{Deterministic: true}.Marshal(answer)
		check(err)
		check(os.WriteFile(filepath.Join(os.Args[1], name+".binpb"), bytes, 0o644))
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// filled sets every field of a message and of those in it.
func filled(message proto.Message) proto.Message {
	fill(message.ProtoReflect())
	return message
}

func fill(message protoreflect.Message) {
	fields := message.Descriptor().Fields()
	for at := 0; at < fields.Len(); at++ {
		field := fields.Get(at)
		switch {
		case field.IsMap():
			text := protoreflect.ValueOfString(name(field))
			message.Mutable(field).Map().Set(text.MapKey(), value(message, field.MapValue()))
		case field.IsList() && field.Message() != nil:
			list := message.Mutable(field).List()
			fill(list.AppendMutable().Message())
			list.AppendMutable()
		case field.IsList():
			list := message.Mutable(field).List()
			list.Append(value(message, field))
			list.Append(value(message, field))
		case field.Message() != nil:
			fill(message.Mutable(field).Message())
		default:
			message.Set(field, value(message, field))
		}
	}
	unknown := protowire.AppendTag(nil, 1000, protowire.VarintType)
	unknown = protowire.AppendVarint(unknown, 1<<63)
	unknown = protowire.AppendTag(unknown, 1001, protowire.BytesType)
	unknown = protowire.AppendString(unknown, "of tomorrow")
	unknown = protowire.AppendTag(unknown, 1002, protowire.Fixed64Type)
	unknown = protowire.AppendFixed64(unknown, 1)
	message.SetUnknown(unknown)
}

func name(field protoreflect.FieldDescriptor) string {
	return fmt.Sprintf("%s.%s", field.Parent().Name(), field.Name())
}

func value(message protoreflect.Message, field protoreflect.FieldDescriptor) protoreflect.Value {
	number := 1000 + int64(field.Number())
	switch field.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(name(field))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte{0, 255})
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		values := field.Enum().Values()
		return protoreflect.ValueOfEnum(values.Get(values.Len() - 1).Number())
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(number))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(number)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(number))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(number))
	default:
		log.Fatalf("%s is a %v", name(field), field.Kind())
		panic(nil)
	}
}
