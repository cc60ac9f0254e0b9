//! Gives an open device node to another process over a unix socket, as a device broker does: the
//! other process never opens it.

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType, accept, bind, connect, listen,
    recvmsg, sendmsg, socket,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

/// Waits for one process to connect and gives it the node; `path` must not be there yet.
pub(super) fn give(path: &Path, node: &OwnedFd) -> io::Result<()> {
    let listener = socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    bind(&listener, &SocketAddrUnix::new(path)?)?;
    listen(&listener, 1)?;
    let taker = accept(&listener)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let nodes = [node.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&nodes));
    sendmsg(&taker, &[IoSlice::new(b"node")], &mut control, SendFlags::empty())?;
    Ok(())
}

/// Takes a node from the process that gives it there.
pub(super) fn take(path: &Path) -> io::Result<OwnedFd> {
    let giver = socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    connect(&giver, &SocketAddrUnix::new(path)?)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut text = [0; 4];
    recvmsg(&giver, &mut [IoSliceMut::new(&mut text)], &mut control, RecvFlags::empty())?;
    let node = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut nodes) => nodes.next(),
        _ => None,
    });
    node.ok_or_else(|| io::Error::other("no node came with the message"))
}
