#include "store/records/writer.h"

#include <fmt/format.h>

#include <map>
#include <thread>

#include "store/records/record.h"
#include "store/records/record_folder.h"
#include "store/records/verify.h"
#include "store/vault/vault_files_for_test.h"

namespace smoe::store::records {
namespace {

using vault::ReadFile;
using vault::TempFolder;
using vault::WriteFile;

constexpr uint32_t kLayers = 3;
constexpr uint32_t kExperts = 4;

ExpertIndex SmallIndex() {
  ExpertIndex index;
  index.num_moe_layers = kLayers;
  index.num_experts = kExperts;
  index.inter = 16;
  index.hidden = 32;
  index.moe_layer_to_model_layer = {1, 2, 5};
  return index;
}

// A record whose bytes follow from its key.
std::vector<std::byte> SmallRecord(const ExpertRecordSpec& spec, ExpertKey key) {
  std::vector<std::byte> record(spec.raw_bytes);
  std::vector<std::vector<std::byte>> buffers;
  ExpertParts parts;
  for (const Proj proj : kProjs) {
    const ProjBytes bytes = spec.Place(proj).bytes;
    const auto fill = static_cast<uint8_t>(key.layer * 16 + key.expert * 3 + ProjIndex(proj));
    buffers.emplace_back(bytes.packed, std::byte{fill});
    buffers.emplace_back(bytes.scale, std::byte{0x38});
    ProjParts& part = parts.projs[ProjIndex(proj)];
    part.packed = buffers[buffers.size() - 2];
    part.scale = buffers.back();
    part.scale2 = 0.5F;
  }
  EXPECT_TRUE(PackRecord(spec, key, parts, PartsOrder::kRecord, record));
  return record;
}

std::unique_ptr<RecordWriter> MustCreate(const std::string& folder,
                                         const RecordWriterOptions& options = {}) {
  auto writer = RecordWriter::Create(folder, SmallIndex(), options);
  EXPECT_TRUE(writer) << writer.error().message();
  return writer ? std::move(*writer) : nullptr;
}

void WriteLayer(RecordWriter& writer, uint32_t layer) {
  for (uint32_t expert = 0; expert < kExperts; ++expert) {
    const ExpertKey key{layer, expert};
    const Status status = writer.WriteRecord(key, SmallRecord(writer.spec(), key));
    ASSERT_TRUE(status) << status.error().message();
  }
}

void WriteStore(const std::string& folder, const RecordWriterOptions& options = {}) {
  const auto writer = MustCreate(folder, options);
  ASSERT_NE(writer, nullptr);
  for (uint32_t layer = 0; layer < kLayers; ++layer) WriteLayer(*writer, layer);
  ASSERT_TRUE(writer->AddFile("config.json", "config.json", AsBytes(std::string_view("{}"))));
  ASSERT_TRUE(writer->Finish());
}

TEST(RecordWriter, WritesAStoreThatOpensAndVerifies) {
  const TempFolder temp;
  const std::string path = temp.File("store");
  WriteStore(path);
  const auto folder = OpenRecordFolder(path);
  ASSERT_TRUE(folder) << folder.error().message();
  EXPECT_TRUE(folder->index.says_orientation);
  EXPECT_EQ(folder->index.record_checksums.size(), size_t{kLayers} * kExperts);
  ASSERT_NE(folder->index.FindFile("config.json"), nullptr);
  EXPECT_EQ(ReadStoreFile(*folder, *folder->index.FindFile("config.json"), 10).value(), "{}");
  vault::VerifyReport report;
  ASSERT_TRUE(VerifyRecords(*folder, {}, &report));
  EXPECT_TRUE(report.problems.empty());
  EXPECT_TRUE(report.warnings.empty());
  // Record 3 of layer 2 begins at 3 x 4096.
  const std::string layer = ReadFile(folder->LayerPath(2));
  EXPECT_EQ(layer.size(), size_t{4} * 4096);
  EXPECT_EQ(layer.substr(3 * 4096, 4), "TRPX");
}

TEST(RecordWriter, GivesTheSameFilesFromManyThreadsInAnyOrder) {
  const TempFolder temp;
  WriteStore(temp.File("a"));
  const auto writer = MustCreate(temp.File("b"));
  ASSERT_NE(writer, nullptr);
  std::vector<std::thread> threads;
  for (uint32_t expert = 0; expert < kExperts; ++expert) {
    threads.emplace_back([&, expert] {
      for (uint32_t layer = kLayers; layer-- > 0;) {
        const ExpertKey key{layer, expert};
        EXPECT_TRUE(writer->WriteRecord(key, SmallRecord(writer->spec(), key)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(writer->AddFile("config.json", "config.json", AsBytes(std::string_view("{}"))));
  ASSERT_TRUE(writer->Finish());
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    const std::string name = "/" + ExpertIndex::FileName(layer);
    EXPECT_EQ(ReadFile(temp.File("a") + name), ReadFile(temp.File("b") + name));
  }
  EXPECT_EQ(ReadFile(temp.File("a/manifest.json")), ReadFile(temp.File("b/manifest.json")));
}

TEST(RecordWriter, NamesALayerOnlyWhenItIsWholeAndTheStoreOnlyAtTheEnd) {
  const TempFolder temp;
  const auto writer = MustCreate(temp.File("s"));
  WriteLayer(*writer, 0);
  ASSERT_TRUE(writer->WriteRecord({1, 0}, SmallRecord(writer->spec(), {1, 0})));
  EXPECT_TRUE(std::filesystem::exists(temp.File("s/experts_00000.xpr")));
  EXPECT_FALSE(std::filesystem::exists(temp.File("s/experts_00001.xpr")));
  EXPECT_TRUE(std::filesystem::exists(temp.File("s/experts_00001.xpr.partial")));
  EXPECT_TRUE(IsRecordFolder(temp.File("s")));
  const auto opened = OpenRecordFolder(temp.File("s"));
  ASSERT_FALSE(opened);
  EXPECT_NE(opened.error().message().find("manifest.json: missing"), std::string::npos);
}

TEST(RecordWriter, LeavesNothingBehindUnlessTold) {
  const TempFolder temp;
  {
    const auto writer = MustCreate(temp.File("s"));
    WriteLayer(*writer, 0);
    ASSERT_TRUE(writer->WriteRecord({1, 0}, SmallRecord(writer->spec(), {1, 0})));
    ASSERT_TRUE(writer->AddFile("config.json", "config.json", AsBytes(std::string_view("{}"))));
    ASSERT_TRUE(writer->BeginFile("trunk", "trunk.safetensors", 10));
  }
  EXPECT_FALSE(std::filesystem::exists(temp.File("s")));
}

TEST(RecordWriter, TakesOverTheRecordsOfAnInterruptedRunThatHaveTheirChecksum) {
  const TempFolder temp;
  WriteStore(temp.File("whole"));
  std::vector<uint64_t> checksums;
  {
    const auto writer = MustCreate(temp.File("s"));
    writer->KeepPartial();
    WriteLayer(*writer, 0);
    ASSERT_TRUE(writer->WriteRecord({1, 2}, SmallRecord(writer->spec(), {1, 2})));
    for (uint32_t e = 0; e < kExperts; ++e) checksums.push_back(writer->record_checksum({0, e}));
    checksums.push_back(writer->record_checksum({1, 2}));
  }
  // Without a word about it, it is refused.
  const auto refused = RecordWriter::Create(temp.File("s"), SmallIndex(), {});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("--resume goes on with it"), std::string::npos);

  std::string layer = ReadFile(temp.File("s/experts_00000.xpr"));
  layer[4096 + 300] ^= 1;   // in record 1
  layer[3 * 4096 - 1] = 1;  // behind record 2, where no checksum looks
  WriteFile(temp.File("s/experts_00000.xpr"), layer);
  const auto writer = MustCreate(temp.File("s"), {.overwrite = false, .resume = true});
  std::vector<std::byte> scratch(writer->spec().raw_bytes);
  for (uint32_t e = 0; e < kExperts; ++e) {
    EXPECT_EQ(writer->RestoreRecord({0, e}, checksums[e], scratch).value(), e != 1) << e;
  }
  EXPECT_TRUE(writer->RestoreRecord({1, 2}, checksums[4], scratch).value());
  EXPECT_FALSE(writer->RestoreRecord({1, 3}, checksums[4], scratch).value());
  ASSERT_TRUE(writer->WriteRecord({0, 1}, SmallRecord(writer->spec(), {0, 1})));
  for (const uint32_t e : {0U, 1U, 3U}) {
    ASSERT_TRUE(writer->WriteRecord({1, e}, SmallRecord(writer->spec(), {1, e})));
  }
  WriteLayer(*writer, 2);
  ASSERT_TRUE(writer->AddFile("config.json", "config.json", AsBytes(std::string_view("{}"))));
  ASSERT_TRUE(writer->Finish());
  for (const auto& entry : std::filesystem::directory_iterator(temp.File("whole"))) {
    const std::string name = entry.path().filename().string();
    EXPECT_EQ(ReadFile(temp.File("s/" + name)), ReadFile(entry.path().string())) << name;
  }
}

TEST(RecordWriter, ReplacesAFinishedStoreOnlyWhenToldAndThenAllOfIt) {
  const TempFolder temp;
  WriteStore(temp.File("s"));
  const std::string manifest = ReadFile(temp.File("s/manifest.json"));
  for (const bool resume : {false, true}) {
    const auto refused =
        RecordWriter::Create(temp.File("s"), SmallIndex(), {.overwrite = false, .resume = resume});
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message().find("--force replaces it"), std::string::npos);
  }
  EXPECT_EQ(ReadFile(temp.File("s/manifest.json")), manifest);
  ExpertIndex smaller = SmallIndex();
  smaller.num_moe_layers = 1;
  smaller.moe_layer_to_model_layer = {1};
  auto writer =
      RecordWriter::Create(temp.File("s"), smaller, {.overwrite = true, .resume = false}).value();
  WriteLayer(*writer, 0);
  ASSERT_TRUE(writer->Finish());
  EXPECT_FALSE(std::filesystem::exists(temp.File("s/experts_00001.xpr")));
  EXPECT_FALSE(std::filesystem::exists(temp.File("s/config.json")));
  EXPECT_TRUE(OpenRecordFolder(temp.File("s")));
}

// Every file of a folder with its content.
std::map<std::string, std::string> FilesOf(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files[entry.path().filename().string()] = ReadFile(entry.path().string());
  }
  return files;
}

TEST(RecordWriter, AStoreThatIsReplacedStaysWholeUntilTheNewOneIs) {
  const TempFolder temp;
  const std::string path = temp.File("s");
  WriteStore(path);
  WriteFile(path + "/notes.txt", "mine");
  const auto before = FilesOf(path);
  const RecordWriterOptions force{.overwrite = true, .resume = false};
  {
    const auto writer = MustCreate(path, force);
    WriteLayer(*writer, 0);
    ASSERT_TRUE(writer->AddFile("config.json", "config.json", AsBytes(std::string_view("new"))));
    EXPECT_EQ(FilesOf(path), before);
    EXPECT_TRUE(OpenRecordFolder(path));
  }
  EXPECT_EQ(FilesOf(path), before);
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));

  // Through a link, over what a killed run has left.
  std::filesystem::create_directory(path + ".partial");
  WriteFile(path + ".partial/manifest.json.partial", "");
  WriteFile(path + ".partial/chat_template.jinja", "left");
  std::filesystem::create_directory_symlink(path, temp.File("link"));
  const auto writer = MustCreate(temp.File("link"), force);
  for (uint32_t layer = 0; layer < kLayers; ++layer) WriteLayer(*writer, layer);
  ASSERT_TRUE(writer->AddFile("config.json", "config.json", AsBytes(std::string_view("new"))));
  EXPECT_EQ(FilesOf(path), before);
  ASSERT_TRUE(writer->Finish());
  auto after = FilesOf(path);
  EXPECT_TRUE(OpenRecordFolder(path));
  EXPECT_EQ(after["config.json"], "new");
  EXPECT_EQ(after["notes.txt"], "mine");
  EXPECT_EQ(after.size(), before.size());
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
  EXPECT_TRUE(std::filesystem::is_symlink(temp.File("link")));
}

TEST(RecordWriter, WhereTheOlderStoreWasMovedAwayTheNewOneTakesItsName) {
  const TempFolder temp;
  const std::string path = temp.File("s");
  WriteStore(path);
  const auto before = FilesOf(path);
  const auto writer = MustCreate(path, {.overwrite = true, .resume = false});
  for (uint32_t layer = 0; layer < kLayers; ++layer) WriteLayer(*writer, layer);
  std::filesystem::rename(path, temp.File("kept"));
  const Status finished = writer->Finish();
  ASSERT_TRUE(finished) << finished.error().message();
  EXPECT_TRUE(OpenRecordFolder(path));
  EXPECT_EQ(FilesOf(temp.File("kept")), before);
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
}

TEST(RecordWriter, AFinishedStoreInTheWayOfAReplacementIsNotTouched) {
  const TempFolder temp;
  WriteStore(temp.File("s"));
  WriteStore(temp.File("s.partial"));
  const auto before = FilesOf(temp.File("s.partial"));
  const auto refused =
      RecordWriter::Create(temp.File("s"), SmallIndex(), {.overwrite = true, .resume = false});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("s.partial/manifest.json: a finished store"),
            std::string::npos)
      << refused.error().message();
  EXPECT_EQ(FilesOf(temp.File("s.partial")), before);
  EXPECT_TRUE(OpenRecordFolder(temp.File("s")));
}

TEST(RecordWriter, WhatIsOfNoStoreInTheWayOfAReplacementIsNotTouched) {
  const TempFolder temp;
  WriteStore(temp.File("s"));
  const auto before = FilesOf(temp.File("s"));
  const std::string partial = temp.File("s.partial");
  const auto refuses = [&](const std::string& name) {
    const auto refused =
        RecordWriter::Create(temp.File("s"), SmallIndex(), {.overwrite = true, .resume = false});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::kInvalid);
    EXPECT_NE(refused.error().message().find("s.partial: holds " + name), std::string::npos)
        << refused.error().message();
  };
  // A checkpoint; and names that a store has too, with nothing that shows one.
  for (const char* name : {"model.safetensors", "notes.txt", "config.json", "experts_00000.xpr/"}) {
    std::filesystem::create_directory(partial);
    const std::string path = partial + "/" + name;
    if (path.ends_with("/")) {
      std::filesystem::create_directory(path);
    } else {
      WriteFile(path, "mine");
    }
    refuses(path.ends_with("/") ? "experts_00000.xpr" : name);
    EXPECT_TRUE(std::filesystem::exists(path));
    std::filesystem::remove_all(partial);
  }
  // Beside what is left of a run.
  std::filesystem::create_directory(partial);
  WriteFile(partial + "/experts_00000.xpr.partial", "left");
  WriteFile(partial + "/notes.txt", "mine");
  refuses("notes.txt");
  EXPECT_EQ(FilesOf(partial).size(), 2U);
  EXPECT_EQ(FilesOf(temp.File("s")), before);
}

TEST(RecordWriter, LetsOneWriterAtATimeIntoAFolder) {
  const TempFolder temp;
  const auto first = MustCreate(temp.File("s"));
  const auto second =
      RecordWriter::Create(temp.File("s"), SmallIndex(), {.overwrite = true, .resume = false});
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().message().find("another process"), std::string::npos);
}

TEST(RecordWriter, MakesItsFolderButNotTheOnesAboveIt) {
  const TempFolder temp;
  for (const char* ending : {"no/such/s", "no/such/s/"}) {
    const Status place = RecordWriter::CheckPlace(temp.File(ending), {}, {});
    ASSERT_FALSE(place);
    EXPECT_EQ(place.error().code(), ErrorCode::kInvalid);
    EXPECT_NE(place.error().message().find("there is no folder " + temp.File("no/such") + " to"),
              std::string::npos)
        << place.error().message();
    EXPECT_FALSE(RecordWriter::Create(temp.File(ending), SmallIndex(), {}));
  }
  EXPECT_FALSE(std::filesystem::exists(temp.File("no")));
  EXPECT_TRUE(RecordWriter::CheckPlace(temp.File("s/"), {}, {}));
  MustCreate(temp.File("s/"))->KeepPartial();
  EXPECT_TRUE(std::filesystem::is_directory(temp.File("s")));
}

TEST(RecordWriter, RefusesWhatNoManifestMaySay) {
  const TempFolder temp;
  ExpertIndex index = SmallIndex();
  index.hidden = 24;
  EXPECT_FALSE(RecordWriter::Create(temp.File("s"), index, {}));
  index = SmallIndex();
  index.moe_layer_to_model_layer = {1, 1, 2};
  const auto twice = RecordWriter::Create(temp.File("s"), index, {});
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.error().code(), ErrorCode::kInvalid);
  WriteFile(temp.File("file"), "x");
  EXPECT_FALSE(RecordWriter::Create(temp.File("file"), SmallIndex(), {}));
  EXPECT_FALSE(std::filesystem::exists(temp.File("s")));
}

}  // namespace
}  // namespace smoe::store::records
