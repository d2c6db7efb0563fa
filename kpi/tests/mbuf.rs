//! Packets have one owner, whatever goes wrong.

mod common;

use common::*;
use fake_kernel::memory;
use ipoib_rs::packet::{NoHeadroom, PacketBuf, ShortPacket};
use kpi::mbuf::PacketList;

#[test]
fn a_packet_grows_and_shrinks_at_its_front() {
    let mut packet = packet(b"payload");
    packet.prepend(b"head").unwrap();
    assert_eq!(bytes(&packet), b"headpayload");
    packet.trim_front(6).unwrap();
    assert_eq!(bytes(&packet), b"yload");
    assert_eq!(packet.trim_front(6), Err(ShortPacket));
    assert_eq!(packet.copy_out(3, &mut [0; 3]), Err(ShortPacket));
    assert_eq!(packet.copy_out(usize::MAX, &mut [0; 3]), Err(ShortPacket));
    assert_eq!(bytes(&packet), b"yload");
}

#[test]
fn a_packet_for_which_there_is_no_room_stays_as_it_was() {
    let mut packet = packet(b"payload");
    memory::fail_after(0);
    assert_eq!(packet.prepend(b"head"), Err(NoHeadroom));
    memory::fail_after(0);
    assert!(packet.fragment(b"head", 0..4).is_none());
    memory::fail_after(0);
    assert!(packet.writable_front(3).is_none());
    assert!(memory::has_failed());
    assert_eq!(bytes(&packet), b"payload");
}

#[test]
fn a_fragment_lives_on_without_the_packet_that_it_was_cut_from() {
    let packet = packet(b"0123456789");
    let fragment = packet.fragment(b"head", 3..7).unwrap();
    assert!(packet.fragment(b"head", 3..11).is_none());
    drop(packet);
    assert_eq!(bytes(&fragment), b"head3456");
}

#[test]
fn the_front_of_a_packet_can_be_changed() {
    let mut packet = packet(b"payload");
    packet.writable_front(3).unwrap().copy_from_slice(b"PAY");
    assert!(packet.writable_front(8).is_none());
    assert_eq!(bytes(&packet), b"PAYload");
}

#[test]
fn a_list_gives_packets_back_in_order_with_their_notes() {
    let mut list = PacketList::new();
    for (text, note) in [(b"b", 2), (b"c", 3)] {
        list.push(packet(text), note);
    }
    list.push_front(packet(b"a"), 1);
    assert_eq!(list.len(), 3);
    let mut seen = Vec::new();
    while let Some((packet, note)) = list.pop() {
        seen.push((bytes(&packet), note));
    }
    assert_eq!(seen, [(b"a".to_vec(), 1), (b"b".to_vec(), 2), (b"c".to_vec(), 3)]);
    list.push(packet(b"d"), 4);
    assert_eq!(list.pop().map(|(packet, note)| (bytes(&packet), note)), Some((b"d".to_vec(), 4)));
    assert!(list.is_empty());
}

#[test]
fn a_list_that_goes_takes_its_packets_with_it() {
    let mut list = PacketList::new();
    for text in [b"a", b"b", b"c"] {
        list.push(packet(text), 0);
    }
    drop(list.pop());
}
