//! An adapter that records.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use ipoib_rs::action::HandleId;
use ipoib_rs::counters::DropReason;
use ipoib_rs::packet::{
    DataPath, DatagramSend, Delivery, NoHeadroom, PacketBuf, PacketSink, PostReceiveError, SendId,
    ShortPacket,
};

/// The MTU of the fabric: nothing larger is posted.
const IB_MTU_BYTES: usize = 2048;

/// A packet that must end in the adapter's or the test's hands.
#[derive(Debug)]
pub struct Packet {
    bytes: Vec<u8>,
    /// Packets that ended elsewhere.
    lost: Rc<Cell<usize>>,
    is_settled: bool,
}

impl Packet {
    /// Ends its life as it should end.
    pub fn settle(mut self) -> Vec<u8> {
        self.is_settled = true;
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for Packet {
    fn drop(&mut self) {
        if !self.is_settled {
            self.lost.set(self.lost.get() + 1);
        }
    }
}

impl PacketBuf for Packet {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn copy_out(&self, offset: usize, out: &mut [u8]) -> Result<(), ShortPacket> {
        let end = offset.checked_add(out.len()).ok_or(ShortPacket)?;
        out.copy_from_slice(self.bytes.get(offset..end).ok_or(ShortPacket)?);
        Ok(())
    }

    fn prepend(&mut self, bytes: &[u8]) -> Result<(), NoHeadroom> {
        self.bytes.splice(..0, bytes.iter().copied());
        Ok(())
    }

    fn trim_front(&mut self, count: usize) -> Result<(), ShortPacket> {
        if count > self.bytes.len() {
            return Err(ShortPacket);
        }
        self.bytes.drain(..count);
        Ok(())
    }
}

#[derive(Default)]
pub struct Adapter {
    /// What was ever posted, in order, with its encapsulation header.
    pub sent: Vec<(DatagramSend, Vec<u8>)>,
    pub delivered: Vec<(Vec<u8>, Delivery)>,
    pub dropped: Vec<(Vec<u8>, DropReason)>,
    pub too_big: Vec<(Vec<u8>, usize)>,
    /// Posts are refused.
    pub refuses_sends: bool,
    /// Nothing completes in the error state.
    pub is_wedged: bool,
    pub receives_posted: usize,
    posted: VecDeque<(DatagramSend, Packet)>,
    lost: Rc<Cell<usize>>,
}

impl Adapter {
    pub fn packet(&self, bytes: &[u8]) -> Packet {
        Packet { bytes: bytes.to_vec(), lost: self.lost.clone(), is_settled: false }
    }

    /// A frame in one of the posted receives.
    pub fn received(&mut self, frame: &[u8]) -> Packet {
        assert!(self.take_receive(), "no receive is posted");
        self.packet(frame)
    }

    /// Takes one posted receive away; says whether there was one.
    pub fn take_receive(&mut self) -> bool {
        let is_there = self.receives_posted > 0;
        self.receives_posted -= usize::from(is_there);
        is_there
    }

    /// The posted send that was posted first.
    pub fn oldest(&self) -> Option<SendId> {
        self.posted.front().map(|(send, _)| send.id)
    }

    pub fn posted(&self) -> Vec<DatagramSend> {
        self.posted.iter().map(|(send, _)| *send).collect()
    }

    pub fn uses(&self, handle: HandleId) -> bool {
        self.posted.iter().any(|(send, _)| send.handle == handle)
    }

    /// A posted send is done.
    pub fn finish(&mut self, id: SendId) {
        let at = self.posted.iter().position(|(send, _)| send.id == id);
        let (_, packet) = self.posted.remove(at.expect("a posted send")).unwrap();
        packet.settle();
    }

    /// The queue pair was reset: all buffers are taken back.
    pub fn reset(&mut self) {
        self.posted.drain(..).for_each(|(_, packet)| drop(packet.settle()));
        self.receives_posted = 0;
    }

    /// Forgets what was recorded.
    pub fn forget(&mut self) {
        self.sent.clear();
        self.delivered.clear();
        self.dropped.clear();
        self.too_big.clear();
    }

    pub fn lost(&self) -> usize {
        self.lost.get()
    }

    /// Nothing is posted, and no packet is anywhere.
    pub fn assert_empty(&self) {
        assert!(self.posted.is_empty(), "sends are left");
        assert_eq!(self.receives_posted, 0, "receives are left");
    }
}

impl PacketSink<Packet> for Adapter {
    fn deliver(&mut self, packet: Packet, delivery: Delivery) {
        self.delivered.push((packet.settle(), delivery));
    }

    fn drop_packet(&mut self, packet: Packet, reason: DropReason) {
        self.dropped.push((packet.settle(), reason));
    }

    fn release(&mut self, packet: Packet) {
        packet.settle();
    }

    fn packet_too_big(&mut self, packet: Packet, mtu: usize) {
        self.too_big.push((packet.settle(), mtu));
    }
}

impl DataPath<Packet> for Adapter {
    fn post_send(&mut self, send: DatagramSend, packet: Packet) -> Result<(), Packet> {
        assert!(packet.len() <= IB_MTU_BYTES, "a datagram exceeds the MTU of the fabric");
        if self.refuses_sends {
            return Err(packet);
        }
        self.sent.push((send, packet.bytes.clone()));
        self.posted.push_back((send, packet));
        Ok(())
    }

    fn post_receive(&mut self, bytes: usize) -> Result<(), PostReceiveError> {
        assert!(bytes >= 40 + IB_MTU_BYTES, "too small for what may come");
        self.receives_posted += 1;
        Ok(())
    }

    fn fragment(
        &mut self,
        packet: &Packet,
        header: &[u8],
        payload: Range<usize>,
    ) -> Option<Packet> {
        Some(self.packet(&[header, packet.bytes.get(payload)?].concat()))
    }
}
