//! One contract for every store of names (`--names`): a client that speaks as launchers do, over the rendezvous and over the
//! processes that keep names elsewhere, in real servers.

#![allow(clippy::unwrap_used)] // what is not as expected fails the test

#[macro_use(for_each_mpi, test)]
extern crate wireup_test_support;

mod command;
mod contract;
mod directory;
mod launches;
mod places;

use places::Place;
use wireup_test_support as common;

fn main() -> std::process::ExitCode {
    wireup_test_support::main()
}

/// One test for each store and sentence of the contract, named after both.
macro_rules! for_each_store {
    ($($store:ident)*) => {
        $(mod $store {
            for_each_store!(@tests $store
                a_name_has_an_owner_who_alone_withdraws_it_as_its_own
                a_name_is_published_once_and_again_after_its_withdrawal
                a_name_expires_and_its_place_is_free
                a_name_is_read_as_often_as_its_publisher_says
                a_value_for_one_reader_goes_to_one_of_many_and_comes_back_from_one_that_is_gone
                only_what_persists_outlives_its_launch
                what_a_process_published_goes_with_it
                names_of_a_launch_that_was_killed_are_pruned
                a_lookup_waits_for_a_name_or_its_timeout
                ten_thousand_names_are_listed_found_and_withdrawn
                launches_that_meet_by_a_name_see_only_each_others_names
                two_users_have_the_same_name
                a_store_that_is_away_refuses_with_a_reason_and_goes_on_when_it_is_back
            );
        })*
    };
    (@tests $store:ident $($name:ident)*) => {
        $(#[test]
        fn $name() {
            if let Some(place) = super::Place::$store() {
                super::contract::$name(&place);
            }
        })*
    };
}

for_each_store!(agents file etcd ldap);

#[test]
fn files_are_those_of_mpich_both_ways() {
    if let Some(place) = Place::file() {
        contract::files_are_those_of_mpich_both_ways(&place);
    }
}

#[test]
fn a_directory_that_others_may_write_is_refused() {
    if let Some(place) = Place::file() {
        contract::a_directory_that_others_may_write_is_refused(&place);
    }
}
