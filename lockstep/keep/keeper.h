// The keeper's end: listens, takes in what other nodes send it and gives it out to those who ask, each connection in a
// thread of its own, behind training in priority. Whoever does not greet with the run's token is turned away and
// counted; those who say nothing take no place from those who do.
//
//   Keeper keeper(token, limit);
//   LS_RETURN_IF_ERROR(keeper.Open(loopback_only));
//   keeper.port();  keeper.store()
#pragma once

#include <atomic>
#include <deque>
#include <list>
#include <string>
#include <thread>

#include "lockstep/keep/connection.h"
#include "lockstep/keep/store.h"
#include "lockstep/keep/wire.h"

namespace lockstep::keep {

class Keeper {
 public:
  Keeper(std::string token, Bytes limit) : token_(std::move(token)), store_(limit) {}
  absl::Status Open(bool loopback_only);

  int port() const { return port_; }
  Store& store() { return store_; }
  int64_t turned_away() const { return turned_away_; }

 private:
  // Has not greeted yet.
  struct Caller {
    Fd socket;
    Nanos came;
    Greeting greeting;
    size_t got = 0;  // bytes of it
  };
  struct Guest {
    std::atomic<bool> gone = false;
    std::jthread thread;
  };
  void Listen(const std::stop_token& stop);
  void LetIn();
  void Hear(Caller& caller);
  void Welcome(Caller& caller);
  void TurnAway(Caller& caller);
  void Serve(Connection connection, Purpose purpose);
  absl::Status Receive(Connection& connection);
  absl::Status Give(Connection& connection);
  absl::Status GiveSlot(Connection& connection, const Image& image, size_t slot);

  const std::string token_;
  Store store_;
  Fd socket_;
  int port_ = 0;
  std::atomic<int64_t> turned_away_ = 0;
  std::deque<Caller> callers_;  // the listening thread's, as is what follows; the oldest first
  std::list<Guest> guests_;
  std::jthread listener_;  // last: it goes first
};

}  // namespace lockstep::keep
