//! The kubelet's answer about its pods, without what it repeats.
//!
//! With each retry of a claim whose other driver fails, a kubelet lists the claim's devices again, each with
//! the CDI names of all before it (kubernetes/kubernetes #141335): the list grows to megabytes, to hundreds
//! of times as much in memory. So a device that a claim has listed already is dropped before it is parsed.

use crate::pod_resources::PodResources;
use prost::bytes::{Buf, BufMut, Bytes};
use prost::encoding::{self, DecodeContext, WireType};
use prost::{DecodeError, Message};
use std::collections::HashSet;

/// `ListPodResourcesResponse` or `GetPodResourcesResponse`: the field has the same number.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pods(pub Vec<PodResources>);

/// `ListPodResourcesResponse.pod_resources`.
const PODS: u32 = 1;
/// From a pod to the devices of its claims: `containers`, `dynamic_resources`, `claim_resources`.
const DEVICES: &[u32] = &[3, 5, 4];
/// `ClaimResource.cdi_devices`, which differ each time.
const CDI: u32 = 1;

impl Message for Pods {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        encoding::message::encode_repeated(PODS, &self.0, buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        if tag != PODS {
            return encoding::skip_field(wire_type, tag, buf, ctx);
        }
        let mut pod = Bytes::new();
        encoding::bytes::merge(wire_type, &mut pod, buf, ctx)?;
        let mut distinct = Vec::new();
        self.0.push(match copy(&pod, DEVICES, &mut distinct) {
            Some(()) => PodResources::decode(distinct.as_slice())?,
            // Its own words say what is wrong with it.
            None => PodResources::decode(pod)?,
        });
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        encoding::message::encoded_len_repeated(PODS, &self.0)
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

/// Copies a message; of the messages that a path of fields leads to, only those that differ. `None` if it
/// is no message.
fn copy(mut from: &[u8], path: &[u32], into: &mut Vec<u8>) -> Option<()> {
    let (next, further) = path.split_first()?;
    let mut seen = HashSet::new();
    while !from.is_empty() {
        let (tag, field, inner) = field(&mut from)?;
        match inner.filter(|_| tag == *next) {
            Some(inner) if !further.is_empty() => {
                let mut copied = Vec::new();
                copy(inner, further, &mut copied)?;
                encoding::bytes::encode(tag, &copied, into);
            }
            Some(inner) if !seen.insert(identity(inner)?) => {}
            _ => into.extend_from_slice(field),
        }
    }
    Some(())
}

/// A claim's device without its CDI names.
fn identity(mut device: &[u8]) -> Option<Vec<u8>> {
    let mut identity = Vec::new();
    while !device.is_empty() {
        let (tag, field, _) = field(&mut device)?;
        if tag != CDI {
            identity.extend_from_slice(field);
        }
    }
    Some(identity)
}

/// A field's number, the whole of it, and what is in it if that has a length.
type Field<'a> = (u32, &'a [u8], Option<&'a [u8]>);

/// Takes a field off a message.
fn field<'a>(message: &mut &'a [u8]) -> Option<Field<'a>> {
    let whole = *message;
    let (tag, wire_type) = encoding::decode_key(message).ok()?;
    let inner = *message;
    encoding::skip_field(wire_type, tag, message, DecodeContext::default()).ok()?;
    let field = whole.get(..whole.len() - message.len())?;
    let mut inner = inner.get(..inner.len() - message.len())?;
    if wire_type != WireType::LengthDelimited {
        return Some((tag, field, None));
    }
    encoding::decode_varint(&mut inner).ok()?;
    Some((tag, field, Some(inner)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod_resources::{
        CdiDevice, ClaimResource, ContainerResources, DynamicResource, ListPodResourcesResponse,
    };

    /// A claim's devices as `GetDynamicResources` lists them: each with the CDI names so far
    /// (kubernetes/kubernetes 001332b `pkg/kubelet/cm/container_manager_linux.go`).
    fn pod(devices: &[&str]) -> PodResources {
        let mut cdi = Vec::new();
        let device = |name: &&str| {
            cdi.push(CdiDevice { name: format!("k8s.gpu.nvidia.com/claim=8f4b-{name}") });
            ClaimResource {
                cdi_devices: cdi.clone(),
                driver_name: "gpu.nvidia.com".into(),
                pool_name: "node-a".into(),
                device_name: (*name).into(),
                share_id: None,
            }
        };
        let claim = DynamicResource {
            claim_name: "gpus".into(),
            claim_namespace: "ml".into(),
            claim_resources: devices.iter().map(device).collect(),
        };
        let main = ContainerResources {
            name: "main".into(),
            cpu_ids: vec![1, 2],
            dynamic_resources: vec![claim],
            ..ContainerResources::default()
        };
        PodResources {
            name: "a".into(),
            namespace: "ml".into(),
            containers: vec![main.clone(), main],
            ..PodResources::default()
        }
    }

    #[test]
    fn a_device_that_a_claim_repeats_is_read_once_and_the_rest_as_it_is() {
        let repeated = ["gpu-0", "gpu-1", "gpu-0", "gpu-1", "gpu-1"];
        let list = ListPodResourcesResponse { pod_resources: vec![pod(&repeated), pod(&[])] };
        let read = Pods::decode(list.encode_to_vec().as_slice()).unwrap();
        assert_eq!(read, Pods(vec![pod(&["gpu-0", "gpu-1"]), pod(&[])]));
        assert_eq!(Pods::decode(read.encode_to_vec().as_slice()).unwrap(), read);
    }

    #[test]
    fn shares_of_a_device_differ() {
        let mut shared = pod(&["gpu-0", "gpu-0"]);
        for container in &mut shared.containers {
            container.dynamic_resources[0].claim_resources[1].share_id = Some("s1".into());
        }
        let list = ListPodResourcesResponse { pod_resources: vec![shared.clone()] };
        assert_eq!(Pods::decode(list.encode_to_vec().as_slice()).unwrap(), Pods(vec![shared]));
    }

    #[test]
    fn bytes_that_are_no_message_are_refused() {
        let list = ListPodResourcesResponse { pod_resources: vec![pod(&["gpu-0"])] };
        let whole = list.encode_to_vec();
        for length in 1..whole.len() {
            assert!(Pods::decode(&whole[..length]).is_err(), "{length}");
        }
    }

    /// The greatest resident memory since it was last asked for, in bytes.
    fn peak() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        std::fs::write("/proc/self/clear_refs", "5").unwrap();
        1024 * line.trim().split(' ').next().unwrap().parse::<usize>().unwrap()
    }

    #[test]
    fn a_list_of_megabytes_that_repeats_itself_takes_its_own_size_in_memory() {
        let wrap = |tag, inner: &Vec<u8>| {
            let mut field = Vec::new();
            encoding::bytes::encode(tag, inner, &mut field);
            field
        };
        let claim = pod(&["gpu-0", "gpu-1"]).containers[0].dynamic_resources[0].clone();
        let devices = claim.claim_resources.iter().map(Message::encode_to_vec);
        let devices: Vec<u8> = devices.flat_map(|device| wrap(DEVICES[2], &device)).collect();
        let list = devices.repeat(150_000 / 2);
        let list = wrap(PODS, &wrap(DEVICES[0], &wrap(DEVICES[1], &list)));
        peak();
        let before = peak();
        let read = Pods::decode(list.as_slice()).unwrap();
        let grown = peak() - before;
        assert_eq!(read.0[0].containers[0].dynamic_resources[0].claim_resources.len(), 2);
        assert!(list.len() > 10 << 20 && grown < 3 * list.len() / 2, "{grown} of {}", list.len());
    }
}
