// membw [GIB=2] [THREADS=1] [PASSES=5] [HUGE=1]
//
// The machine's own memory: each thread sums its part of one buffer, far larger than any cache.
// Prints one JSON object: bytes per second of the median pass. HUGE asks for huge pages.
#include <immintrin.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define THREADS_MAX 256
#define PASSES_MAX 100
#define LANES 8  // independent sums, so that no load waits for an addition

typedef struct {
  const char* base;
  size_t bytes;
  int passes;
  pthread_barrier_t* barrier;
  long long sum;
} Part;

__attribute__((target("avx2"))) static void* Read(void* argument) {
  Part* part = argument;
  __m256i sums[LANES];
  memset(sums, 0, sizeof sums);
  for (int pass = 0; pass < part->passes; ++pass) {
    pthread_barrier_wait(part->barrier);
    for (size_t i = 0; i < part->bytes; i += sizeof sums) {
      for (int k = 0; k < LANES; ++k) {
        const __m256i* at = (const __m256i*)(part->base + i) + k;
        sums[k] = _mm256_add_epi64(sums[k], _mm256_load_si256(at));
      }
    }
    pthread_barrier_wait(part->barrier);
  }
  for (int k = 0; k < LANES; ++k) part->sum += _mm256_extract_epi64(sums[k], 0);
  return NULL;
}

static double Seconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int Compare(const void* left, const void* right) {
  const double a = *(const double*)left, b = *(const double*)right;
  return (a > b) - (a < b);
}

static int Argument(int argc, char** argv, int index, int otherwise, int min, int max) {
  const int value = argc > index ? atoi(argv[index]) : otherwise;
  if (value >= min && value <= max) return value;
  fprintf(stderr, "membw: argument %d: %d, expected %d to %d\n", index, value, min, max);
  exit(2);
}

int main(int argc, char** argv) {
  const size_t bytes = (size_t)Argument(argc, argv, 1, 2, 1, 1024) << 30;
  const int threads = Argument(argc, argv, 2, 1, 1, THREADS_MAX);
  const int passes = Argument(argc, argv, 3, 5, 1, PASSES_MAX);
  const int huge = Argument(argc, argv, 4, 1, 0, 1);
  char* buffer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (buffer == MAP_FAILED) {
    perror("membw: mmap");
    return 1;
  }
  madvise(buffer, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  memset(buffer, 1, bytes);

  pthread_barrier_t barrier;
  pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
  pthread_t handles[THREADS_MAX];
  Part parts[THREADS_MAX];
  const size_t each = bytes / (size_t)threads / 4096 * 4096;
  for (int i = 0; i < threads; ++i) {
    parts[i] = (Part){buffer + each * (size_t)i, each, passes, &barrier, 0};
    if (pthread_create(&handles[i], NULL, Read, &parts[i])) return 1;
  }
  double rates[PASSES_MAX];
  for (int pass = 0; pass < passes; ++pass) {
    pthread_barrier_wait(&barrier);
    const double start = Seconds();
    pthread_barrier_wait(&barrier);
    rates[pass] = (double)(each * (size_t)threads) / (Seconds() - start);
  }
  long long sum = 0;
  for (int i = 0; i < threads; ++i) {
    pthread_join(handles[i], NULL);
    sum += parts[i].sum;
  }
  qsort(rates, (size_t)passes, sizeof *rates, Compare);
  printf("{\"threads\": %d, \"huge_pages\": %d, \"bytes_per_second\": %.0f, \"sum\": %lld}\n",
         threads, huge, rates[passes / 2], sum);
  return 0;
}
