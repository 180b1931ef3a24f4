use proptest::prelude::*;

use super::*;
use crate::auth::{Method, Secrets};
use crate::server::{Action, ConnectionId, Server, ServerSettings};
use crate::startup::Startup;

fn offer(client: u32, sizes: &[usize]) -> ClientOffer {
    let host = |index: usize, size: usize| HostOffer {
        address: [0; 16],
        port: 1000 + u16::try_from(index).unwrap(),
        ack_mark: 10 + client,
        high_water: 20,
        procs: (0..size)
            .map(|at| ProcId {
                host: [1; 16],
                pid: i64::from(client) << 32 | (index as i64) << 16 | at as i64,
            })
            .collect(),
    };
    ClientOffer {
        versions: vec![(0, 0)],
        data_length: 65_536 - client,
        tag_upper_bound: i32::MAX,
        crossover_size: -1,
        max_linear: -1,
        hosts: sizes
            .iter()
            .enumerate()
            .map(|(index, size)| host(index, *size))
            .collect(),
    }
}

/// What a server gives out for these offers, without one.
fn collect(offers: &[ClientOffer]) -> LabelValues {
    let mask = u32::MAX >> (32 - offers.len());
    let all = |label: Label| offers.iter().flat_map(|offer| offer.value(label)).collect();
    Label::ALL
        .into_iter()
        .map(|label| (label as i32, (mask, all(label))))
        .collect()
}

#[test]
fn example_of_specification_has_version_0_1() {
    let versions = [
        vec![(0, 0), (0, 1)],
        vec![(0, 0), (0, 1), (0, 2)],
        vec![(0, 0), (0, 1), (0, 2)],
    ];
    let offers: Vec<ClientOffer> = (0..)
        .zip(versions)
        .map(|(client, versions)| ClientOffer {
            versions,
            ..offer(client, &[1])
        })
        .collect();
    assert_eq!(ImpiJob::new(3, &collect(&offers)).unwrap().version, (0, 1));
}

#[test]
fn limits_are_minima_and_masters_first_rank_of_each_client() {
    let world = ImpiJob::new(
        3,
        &collect(&[offer(0, &[2, 2, 2]), offer(1, &[3, 3]), offer(2, &[4, 4])]),
    )
    .unwrap();
    assert_eq!(world.limits.data_length, 65_534);
    assert_eq!((world.limits.ack_mark, world.limits.high_water), (10, 20));
    assert_eq!(
        (world.limits.crossover_size, world.limits.max_linear),
        (1024, 4)
    );
    assert_eq!(
        world
            .clients
            .iter()
            .map(|client| client.first)
            .collect::<Vec<_>>(),
        [0, 6, 12]
    );
    assert_eq!(
        (world.client_of(11), world.host_of(11), world.host_of(19)),
        (1, 4, 6)
    );
}

#[test]
fn invalid_world_is_named() {
    let good = collect(&[offer(0, &[2]), offer(1, &[1])]);
    let with = |label: Label, mask: u32, data: &[u8]| {
        let mut collected = good.clone();
        collected.insert(label as i32, (mask, data.to_vec()));
        ImpiJob::new(2, &collected).unwrap_err().to_string()
    };
    let words = |words: &[i32]| {
        words
            .iter()
            .flat_map(|word| word.to_be_bytes())
            .collect::<Vec<u8>>()
    };
    assert_eq!(
        with(Label::TagUpperBound, 1, &[0; 4]),
        "IMPI_C_TAGUB: not all clients sent it (mask 0x1)"
    );
    assert_eq!(
        with(Label::Hosts, 3, &[0; 4]),
        "IMPI_C_NHOSTS: 4 bytes instead of 8"
    );
    assert_eq!(
        with(Label::CrossoverSize, 3, &words(&[-1, 2048])),
        "IMPI_C_COLL_XSIZE: the clients do not agree: [1024, 2048]"
    );
    assert_eq!(
        with(Label::DataLength, 3, &words(&[5, 0])),
        "IMPI_C_DATALEN: client or host 1 sent 0, which is out of range"
    );
    assert_eq!(
        with(Label::HighWater, 3, &words(&[20, 9])),
        "IMPI_H_HIWATER: client or host 1 sent 9, which is out of range"
    );
    assert_eq!(
        with(Label::HostProcs, 3, &words(&[1, 2])),
        "IMPI_H_NPROCS: client or host 0 sent -1, which is out of range"
    );
    assert_eq!(
        with(Label::ProcPid, 3, &[0; 24]),
        "processes 0 and 1 have the same IMPI_P_IPV6 and IMPI_P_PID"
    );
    assert_eq!(
        with(Label::Version, 3, &words(&[0, 0, 0, 0, 0, 0])),
        WorldError::Versions.to_string()
    );
    // -1 and the default are the same.
    assert!(
        ImpiJob::new(
            2,
            &collect(&[
                ClientOffer {
                    crossover_size: 1024,
                    ..offer(0, &[1])
                },
                offer(1, &[1])
            ])
        )
        .is_ok()
    );
}

proptest! {
    #[test]
    fn clients_and_server_agree_on_world(sizes in proptest::collection::vec(proptest::collection::vec(1_usize..4, 1..4), 1..9), token in any::<bool>()) {
        let count = u32::try_from(sizes.len()).unwrap();
        let text = token.then(|| "a token of some length".to_owned());
        let secrets = Secrets { none: !token, key: None, token: text };
        let mut server = Server::new(ServerSettings {
            count,
            sessions: Some(1),
            preference: Method::ALL.to_vec(),
            secrets: secrets.clone(),
            greeting_timeout: std::time::Duration::MAX,
            startup_timeout: None,
        is_print_server: false,
        });
        let now = std::time::Duration::ZERO;
        let offers: Vec<ClientOffer> = (0..).zip(&sizes).map(|(client, sizes)| offer(client, sizes)).collect();
        let mut clients: Vec<Startup> = (0..).zip(&offers).map(|(rank, offer)| Startup::new(secrets.clone(), rank, offer.clone())).collect();
        let mut worlds = vec![None; clients.len()];
        for id in 0..u64::from(count) {
            let source = std::net::IpAddr::from([127, 0, 0, 1]);
            server.connected(ConnectionId(id), String::new(), source, [id as u8; 32], now);
        }
        while worlds.iter().any(Option::is_none) {
            for (id, client) in clients.iter_mut().enumerate() {
                server.received(ConnectionId(id as u64), &client.take_out(), now);
            }
            for action in server.take_actions() {
                match action {
                    Action::Send(id, bytes) => {
                        let at = usize::try_from(id.0).unwrap();
                        for byte in bytes {
                            worlds[at] = clients[at].received(&[byte]).unwrap().or_else(|| worlds[at].take());
                        }
                    }
                    Action::Report(_) => {}
                    other => panic!("{other:?}"),
                }
            }
        }
        let model = ImpiJob::new(sizes.len(), &collect(&offers)).unwrap();
        prop_assert!(worlds.into_iter().all(|world| world.as_ref() == Some(&model)));
        let (clients, collected) = clients[0].collected();
        let handed = decode(&encode(clients, collected)).unwrap();
        prop_assert_eq!(handed, (clients, collected.clone()));
    }

    #[test]
    fn any_bytes_are_safe_for_value_parser(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        crate::fuzzing::values(&bytes);
    }
}

#[test]
fn world_without_clients_is_invalid() {
    let collected = LabelValues::from([(Label::Version as i32, (1, Vec::new()))]);
    assert_eq!(ImpiJob::new(0, &collected), Err(WorldError::Versions));
}
