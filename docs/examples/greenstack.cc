// A Greenstack client in one file: sets two documents, reads one, then follows all changes.
//
//     flatc --cpp --reflect-names greenstack.fbs && g++ -std=c++17 -I. greenstack.cc -o greenstack
//     ./greenstack 11210 orders-feed        the port at 127.0.0.1, and a name for the stream
//     ./greenstack decode                   reads frames in hex, one a line, prints them as JSON
//
// Prints one line for each answer and each change, and ends when the stream has nothing left.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <string>

#include "flatbuffers/minireflect.h"
#include "greenstack_generated.h"

using namespace logweir::greenstack;
using flatbuffers::FlatBufferBuilder;

enum Flag { RESPONSE = 1, FLEX = 2, FENCE = 4, MORE = 8, QUIET = 16 };
enum Key { DCP_ID = 0x0006, VBUCKET = 0x0007, LSN = 0x8001, BUCKET = 0x8004 };
enum Opcode {
  HELLO = 0x0001, SASL_AUTH = 0x0002, KEEPALIVE = 0x0004, SELECT_BUCKET = 0x0400,
  LIST_BUCKETS = 0x0401, CREATE_BUCKET = 0x0402, DELETE_BUCKET = 0x0403, ASSUME_ROLE = 0x0404,
  MUTATION = 0x0405, GET = 0x0406, STREAM_OPEN = 0x0c00, STREAM_CLOSE = 0x0c01, REMOVE = 0x0c02,
  STREAM_MARK = 0x0c03, STREAM_ACK = 0x0c04, NOTICE = 0x0c05, TRUNCATE = 0x0c06,
  GET_MANY = 0x0c07,
};
constexpr uint16_t CHANGE_STREAM = 0x0c00;

[[noreturn]] static void fail(const std::string &why) {
  fprintf(stderr, "greenstack: %s\n", why.c_str());
  exit(1);
}

static std::string big(uint64_t value, int bytes) {
  std::string out;
  while (bytes--) out += char(value >> 8 * bytes & 0xff);
  return out;
}

static uint64_t number(const std::string &data, size_t at, size_t bytes) {
  if (at + bytes > data.size()) fail("a frame is cut");
  uint64_t value = 0;
  while (bytes--) value = value << 8 | uint8_t(data[at++]);
  return value;
}

struct Frame {
  uint32_t opaque = 0;
  uint16_t opcode = 0;
  uint8_t flags = 0;
  uint16_t status = 0;
  std::map<uint16_t, std::string> flex;
  std::string payload;
  size_t size = 0;  // of all its bytes, when it was received
};

static int peer;

static void send(Frame frame) {
  std::string entries, body;
  for (auto &[key, value] : frame.flex) entries += big(key, 2) + big(value.size(), 2) + value;
  if (!entries.empty()) frame.flags |= FLEX;
  body = big(frame.opaque, 4) + big(frame.opcode, 2) + big(frame.flags, 1);
  if (frame.flags & RESPONSE) body += big(frame.status, 2);
  if (!entries.empty()) body += big(entries.size(), 4) + entries;
  body += frame.payload;
  body = big(body.size(), 4) + body;
  for (size_t sent = 0; sent < body.size();) {
    ssize_t count = write(peer, body.data() + sent, body.size() - sent);
    if (count <= 0) fail("the server has gone");
    sent += count;
  }
}

static std::string receive_bytes(size_t size) {
  std::string data(size, 0);
  for (size_t have = 0; have < size;) {
    ssize_t count = read(peer, &data[have], size - have);
    if (count <= 0) fail("the server has gone");
    have += count;
  }
  return data;
}

// A frame without its first four bytes.
static Frame parse(const std::string &data) {
  Frame frame;
  frame.size = 4 + data.size();
  frame.opaque = number(data, 0, 4);
  frame.opcode = number(data, 4, 2);
  frame.flags = number(data, 6, 1);
  size_t at = 7;
  if (frame.flags & RESPONSE) frame.status = number(data, at, 2), at += 2;
  if (frame.flags & FLEX) {
    size_t end = at + 4 + number(data, at, 4);
    for (at += 4; at < end;) {
      uint16_t key = number(data, at, 2), size = number(data, at + 2, 2);
      if (at + 4 + size > data.size()) fail("a frame is cut");
      frame.flex[key] = data.substr(at + 4, size);
      at += 4 + size;
    }
  }
  frame.payload = data.substr(at);
  return frame;
}

static Frame receive() { return parse(receive_bytes(number(receive_bytes(4), 0, 4))); }

static std::string bytes(FlatBufferBuilder &made) {
  return std::string((const char *)made.GetBufferPointer(), made.GetSize());
}

template <class Table>
static const Table *table(const Frame &frame) {
  flatbuffers::Verifier verifier((const uint8_t *)frame.payload.data(), frame.payload.size());
  if (!verifier.VerifyBuffer<Table>(nullptr)) fail("a payload that cannot be read");
  return flatbuffers::GetRoot<Table>(frame.payload.data());
}

static std::string text(const flatbuffers::Vector<uint8_t> *value) {
  return std::string((const char *)value->data(), value->size());
}

// Give the bytes of pushed rows back, so that more may come.
static void acknowledge(const char *name, uint32_t credit) {
  FlatBufferBuilder made;
  made.Finish(CreateStreamAck(made, 0, credit));
  send({0, STREAM_ACK, QUIET, 0, {{DCP_ID, name}}, bytes(made), 0});
}

// Ask, and wait for the answer.
static Frame ask(uint16_t opcode, std::string payload, std::map<uint16_t, std::string> flex = {}) {
  static uint32_t opaque = 0;
  send({++opaque, opcode, 0, 0, flex, payload, 0});
  for (;;) {
    Frame answer = receive();
    if (answer.flags & RESPONSE && answer.opaque == opaque) return answer;
  }
}

static void set(const char *id, const char *value) {
  FlatBufferBuilder made;
  std::string copy = value;
  auto content = made.CreateVector((const uint8_t *)copy.data(), copy.size());
  auto document = CreateDocument(made, CreateDocumentInfoDirect(made, id), content);
  made.Finish(CreateMutation(made, document));
  Frame answer = ask(MUTATION, bytes(made), {{VBUCKET, big(0, 2)}});
  if (answer.status) fail("MUTATION was answered " + std::to_string(answer.status));
  printf("set %s: %s a CAS\n", id, table<MutationResponse>(answer)->cas() ? "got" : "without");
}

static void get(const char *id) {
  FlatBufferBuilder made;
  made.Finish(CreateGetDirect(made, id));
  Frame answer = ask(GET, bytes(made), {{VBUCKET, big(0, 2)}});
  if (answer.status)
    printf("get %s: status 0x%04x\n", id, answer.status);
  else
    printf("get %s: %s\n", id, text(table<GetResponse>(answer)->document()->value()).c_str());
}

static void follow(const char *name) {
  FlatBufferBuilder made;
  made.Finish(CreateStreamOpenDirect(made, nullptr, true, nullptr, 1 << 20, false));
  Frame answer = ask(STREAM_OPEN, bytes(made), {{DCP_ID, name}});
  if (answer.status) fail("STREAM_OPEN was answered " + std::to_string(answer.status));
  for (size_t taken = 0;;) {
    Frame frame = receive();
    taken += frame.size;
    if (taken > 256 * 1024) acknowledge(name, taken), taken = 0;
    std::string bucket = frame.flex[BUCKET];
    if (frame.opcode == MUTATION) {
      auto document = table<Mutation>(frame)->document();
      printf("%s %s = %s\n", bucket.c_str(), document->info()->id()->c_str(),
             text(document->value()).c_str());
    } else if (frame.opcode == REMOVE) {
      printf("%s %s removed\n", bucket.c_str(), table<Remove>(frame)->id()->c_str());
    } else if (frame.opcode == STREAM_MARK) {
      printf("mark %d\n", table<StreamMark>(frame)->kind());
    } else if (frame.opcode == STREAM_CLOSE) {
      printf("closed with 0x%04x\n", table<StreamClose>(frame)->status());
      return;
    }
  }
}

template <class Table>
static std::string json(const Frame &frame) {
  table<Table>(frame);
  flatbuffers::ToStringVisitor made("", true, "", false);
  auto data = (const uint8_t *)frame.payload.data();
  flatbuffers::IterateFlatBuffer(data, Table::MiniReflectTypeTable(), &made);
  return made.s;
}

static std::string json_of_payload(const Frame &frame) {
  bool answer = frame.flags & RESPONSE;
  if (frame.payload.empty()) return "null";
  switch (frame.opcode) {
    case HELLO: return answer ? json<HelloResponse>(frame) : json<HelloRequest>(frame);
    case SASL_AUTH: return answer ? json<SaslResponse>(frame) : json<SaslRequest>(frame);
    case KEEPALIVE: return json<Keepalive>(frame);
    case SELECT_BUCKET: return json<SelectBucket>(frame);
    case LIST_BUCKETS: return json<ListBuckets>(frame);
    case CREATE_BUCKET: return json<CreateBucket>(frame);
    case DELETE_BUCKET: return json<DeleteBucket>(frame);
    case ASSUME_ROLE: return json<AssumeRole>(frame);
    case MUTATION: return answer ? json<MutationResponse>(frame) : json<Mutation>(frame);
    case GET: return answer ? json<GetResponse>(frame) : json<Get>(frame);
    case STREAM_OPEN: return answer ? json<StreamOpened>(frame) : json<StreamOpen>(frame);
    case STREAM_CLOSE: return json<StreamClose>(frame);
    case REMOVE: return answer ? json<MutationResponse>(frame) : json<Remove>(frame);
    case STREAM_MARK: return json<StreamMark>(frame);
    case STREAM_ACK: return json<StreamAck>(frame);
    case NOTICE: return json<Notice>(frame);
    case TRUNCATE: return json<Truncate>(frame);
    case GET_MANY: return answer ? json<GetManyResponse>(frame) : json<GetMany>(frame);
  }
  fail("an opcode that is not known");
}

static int decode() {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::string data;
    for (size_t at = 0; at < line.size(); at += 2) data += char(std::stoi(line.substr(at, 2), 0, 16));
    if (number(data, 0, 4) != data.size() - 4) fail("a frame is cut");
    Frame frame = parse(data.substr(4));
    printf("{\"opaque\": %u, \"opcode\": %u, \"flags\": %u, ", frame.opaque, frame.opcode, frame.flags);
    if (frame.flags & RESPONSE) printf("\"status\": %u, ", frame.status);
    printf("\"flex\": {");
    for (auto entry = frame.flex.begin(); entry != frame.flex.end(); ++entry) {
      printf("%s\"0x%04x\": \"", entry == frame.flex.begin() ? "" : ", ", entry->first);
      for (uint8_t byte : entry->second) printf("%02x", byte);
      printf("\"");
    }
    printf("}, \"payload\": %s}\n", json_of_payload(frame).c_str());
  }
  return 0;
}

int main(int argc, char **argv) {
  if (argc == 2 && !strcmp(argv[1], "decode")) return decode();
  if (argc != 3) fail("usage: greenstack PORT STREAM | greenstack decode");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(atoi(argv[1]));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  peer = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(peer, (sockaddr *)&address, sizeof address)) fail("nobody listens there");

  FlatBufferBuilder hello, bucket;
  std::vector<uint16_t> features{CHANGE_STREAM};
  hello.Finish(CreateHelloRequestDirect(hello, "example", "1", "", &features));
  Frame answer = ask(HELLO, bytes(hello));
  auto said = table<HelloResponse>(answer);
  printf("hello from %s, mechanisms: %s\n", said->agent()->c_str(),
         said->mechanisms() ? said->mechanisms()->c_str() : "");
  if (!said->features() || said->features()->size() != 1) fail("no change streams here");

  bucket.Finish(CreateSelectBucketDirect(bucket, "default"));
  answer = ask(SELECT_BUCKET, bytes(bucket));
  if (answer.status) fail("SELECT_BUCKET was answered " + std::to_string(answer.status));

  set("one", "1");
  set("two", "2");
  get("one");
  get("none");
  follow(argv[2]);
}
