use super::*;

const MAC: Mac = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
const NUMBER: u32 = 0x1234_5678;

/// An answer with these options.
fn answer(address: [u8; 4], options: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![0; HEAD];
    bytes[..3].copy_from_slice(&[2, 1, 6]);
    bytes[4..8].copy_from_slice(&NUMBER.to_be_bytes());
    bytes[16..20].copy_from_slice(&address);
    bytes[28..34].copy_from_slice(&MAC);
    bytes[236..].copy_from_slice(&COOKIE);
    bytes.extend(options.concat());
    bytes
}

const HERE: [u8; 4] = [192, 0, 2, 7];
const OFFERED: &[u8] = &[KIND, 1, 2];
const FROM: &[u8] = &[SERVER, 4, 192, 0, 2, 1];
const FOR: &[u8] = &[LEASE, 4, 0, 0, 0x0e, 0x10];

fn lease(options: &[&[u8]]) -> Option<Lease> {
    match Reply::parse(&answer(HERE, options), NUMBER, MAC) {
        Some(Reply::Offer(lease)) => Some(lease),
        _ => None,
    }
}

#[test]
fn an_offer_is_read() {
    let mask: &[u8] = &[MASK, 4, 255, 255, 240, 0];
    let ways: &[u8] = &[ROUTER, 8, 192, 0, 2, 2, 192, 0, 2, 3];
    let read = lease(&[&[0, 0], OFFERED, mask, ways, FROM, FOR, &[12, 2, b'h', b'i'], &[END], FROM]).unwrap();
    let seconds = Duration::from_secs;
    let expected = Lease {
        ip: HERE.into(),
        prefix: 20,
        gateway: Some([192, 0, 2, 2].into()),
        server: [192, 0, 2, 1].into(),
        time: seconds(3600),
        renew: seconds(1800),
        rebind: seconds(3150),
    };
    assert_eq!(read, expected);
    let mut acknowledged = answer(HERE, &[&[KIND, 1, 5], mask, ways, FROM, FOR]);
    assert_eq!(Reply::parse(&acknowledged, NUMBER, MAC), Some(Reply::Acknowledged(expected)));
    acknowledged[242] = 6;
    assert_eq!(Reply::parse(&acknowledged, NUMBER, MAC), Some(Reply::Refused));
}

/// What the server inside of QEMU offered, and acknowledged, in a boot.
#[test]
fn an_answer_of_qemus_is_read() {
    let mut bytes = vec![0; 548];
    let put = |bytes: &mut Vec<u8>, at: usize, hex: &str| {
        for (i, pair) in hex.as_bytes().chunks(2).enumerate() {
            bytes[at + i] = u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        }
    };
    put(&mut bytes, 0, "0201060051829e8800000000000000000a00020f0a00020200000000525400123456");
    put(&mut bytes, 236, "6382536335010236040a0002020104ffffff0003040a00020206040a000203330400015180ff");
    let Some(Reply::Offer(lease)) = Reply::parse(&bytes, 0x5182_9e88, MAC) else { panic!("no offer") };
    assert_eq!((lease.ip, lease.prefix), (Ipv4Addr::new(10, 0, 2, 15), 24));
    assert_eq!((lease.gateway, lease.server), (Some(Ipv4Addr::new(10, 0, 2, 2)), Ipv4Addr::new(10, 0, 2, 2)));
    assert_eq!((lease.time.as_secs(), lease.renew.as_secs()), (86_400, 43_200));
    bytes[242] = 5;
    assert_eq!(Reply::parse(&bytes, 0x5182_9e88, MAC), Some(Reply::Acknowledged(lease)));
}

#[test]
fn times_that_make_no_sense_are_made_some() {
    let times = |time: u32, renew: u32, rebind: u32| {
        let option = |code: u8, value: u32| [&[code, 4][..], &value.to_be_bytes()].concat();
        let [time, renew, rebind] = [(LEASE, time), (RENEWAL, renew), (REBINDING, rebind)].map(|(c, v)| option(c, v));
        let read = lease(&[OFFERED, FROM, &time, &renew, &rebind]).unwrap();
        [read.time, read.renew, read.rebind].map(|time| time.as_secs())
    };
    assert_eq!(times(1000, 200, 300), [1000, 200, 300]);
    assert_eq!(times(1000, 300, 200), [1000, 300, 875]);
    assert_eq!(times(0, 0, 0), [60, 30, 49]);
    let [time, renew, rebind] = times(u32::MAX, 0, u32::MAX);
    assert!(time > rebind && rebind > renew && renew > 1_000_000_000);
}

#[test]
fn what_is_not_for_us_or_makes_no_sense_is_nothing() {
    assert!(lease(&[OFFERED, FROM, FOR]).is_some());
    let without: [&[&[u8]]; 3] = [&[FROM, FOR], &[OFFERED, FOR], &[OFFERED, FROM]];
    for options in without {
        assert_eq!(lease(options), None);
    }
    for mask in [[0; 4], [255, 0, 255, 0], [0, 255, 255, 255]] {
        assert_eq!(lease(&[OFFERED, FROM, FOR, &[MASK, 4], &mask]), None);
    }
    let odd: &[u8] = &[ROUTER, 4, 0, 0, 0, 0];
    assert_eq!(lease(&[OFFERED, FROM, FOR, odd]).unwrap().gateway, None);
    let whole = answer(HERE, &[OFFERED, FROM, FOR]);
    for address in [[0; 4], [255; 4], [224, 0, 0, 1], [127, 0, 0, 1]] {
        assert_eq!(Reply::parse(&answer(address, &[OFFERED, FROM, FOR]), NUMBER, MAC), None);
    }
    assert_eq!(Reply::parse(&whole, NUMBER + 1, MAC), None);
    assert_eq!(Reply::parse(&whole, NUMBER, [0; 6]), None);
    assert_eq!(Reply::parse(&Say::Discover.bytes(NUMBER, MAC), NUMBER, MAC), None);
}

/// Every cut, every length byte, and every byte turned: nothing breaks, and no cut is taken for a whole lease.
#[test]
fn hostile_bytes_are_borne() {
    let whole = answer(HERE, &[OFFERED, FROM, FOR, &[END]]);
    for length in 0..whole.len() - 1 {
        assert_eq!(Reply::parse(&whole[..length], NUMBER, MAC), None, "{length}");
    }
    for at in 0..whole.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            let _ = Reply::parse(&bytes, NUMBER, MAC);
        }
    }
    // Both fields say that there is more in the other.
    let mut bytes = answer(HERE, &[OFFERED, &[OVERLOAD, 1, 3, END]]);
    bytes[108..111].copy_from_slice(&[OVERLOAD, 1, 3]);
    bytes[111..117].copy_from_slice(FROM);
    bytes[44..50].copy_from_slice(FOR);
    assert!(matches!(Reply::parse(&bytes, NUMBER, MAC), Some(Reply::Offer(_))));
}

#[test]
fn what_is_asked_is_what_the_standard_says() {
    let discover = Say::Discover.bytes(NUMBER, MAC);
    assert_eq!(discover.len(), 300);
    assert_eq!(&discover[..12], &[1, 1, 6, 0, 0x12, 0x34, 0x56, 0x78, 0, 0, 0x80, 0]);
    assert_eq!(&discover[240..243], &[53, 1, 1]);
    let (address, server) = (Ipv4Addr::new(192, 0, 2, 7), Ipv4Addr::new(192, 0, 2, 1));
    let request = Say::Request { address, server }.bytes(NUMBER, MAC);
    assert_eq!(
        &request[240..264],
        &[53, 1, 3, 61, 7, 1, 0x52, 0x54, 0, 0x12, 0x34, 0x56, 50, 4, 192, 0, 2, 7, 54, 4, 192, 0, 2, 1]
    );
    // Where an address is kept, it is the client's own and neither it nor the server stand in options.
    let renew = Say::Renew { address }.bytes(NUMBER, MAC);
    assert_eq!(&renew[10..16], &[0, 0, 192, 0, 2, 7]);
    assert!(!renew[240..].windows(2).any(|pair| pair == [50, 4] || pair == [54, 4]));
}
